"""The plain ops, one file a family. `table()` finds every `Op` value of these files by itself."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Mapping
from types import ModuleType

from graphml.errors import GraphError
from graphml.ir.op import Op


def ops_of(module: ModuleType) -> list[Op]:
    """The `Op` values that a module defines."""
    return [value for value in vars(module).values() if isinstance(value, Op)]


@functools.cache
def table() -> Mapping[str, Op]:
    """Name -> op of every plain op."""
    by_name: dict[str, Op] = {}
    for entry in pkgutil.iter_modules(__path__, __name__ + "."):
        for op in ops_of(importlib.import_module(entry.name)):
            if by_name.setdefault(op.name, op) is not op:
                raise GraphError(f"two ops are called {op.name!r}")
    return by_name
