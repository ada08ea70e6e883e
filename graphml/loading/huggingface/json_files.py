"""Reads JSON files that come with models: bounded in size, objects only.

Knows JSON; nothing of what it means.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from graphml.errors import WeightsError
from graphml.system.read_files import plain_json, plain_text

LARGEST_BYTES = 8 << 20


def read_json(path: Path, largest: int = LARGEST_BYTES) -> dict[str, Any]:
    """The object of a file; WeightsError for any other content, and for more than `largest` bytes."""
    content = plain_json(path, WeightsError, largest, _cannot(path))
    if not isinstance(content, dict):
        raise WeightsError(f"{path}: wanted an object; got {type(content).__name__}")
    return content


def read_text(path: Path, largest: int = LARGEST_BYTES) -> str:
    """The text of a plain file of at most `largest` bytes."""
    return plain_text(path, WeightsError, largest, _cannot(path))


def _cannot(path: Path) -> str:
    return f"cannot be read as {path.name}"


def with_text_config(config: dict[str, Any]) -> dict[str, Any]:
    """A config with the fields of its language model, where that is a part of a larger one."""
    inner = config.get("text_config")
    return {**config, **inner} if isinstance(inner, dict) else config
