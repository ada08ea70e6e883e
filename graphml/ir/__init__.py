"""Graphs: types, ops with their NumPy references, builder, verifier, text form, interpreter.

Knows nothing of files, backends, models or tokens.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any


def __getattr__(name: str) -> Any:
    """A module of the room, so that `graphml.ir.dtype` needs no import of its own."""
    if name.startswith("_") or find_spec(f"graphml.ir.{name}") is None:
        raise AttributeError(f"module 'graphml.ir' has no attribute {name!r}")
    return import_module(f"graphml.ir.{name}")
