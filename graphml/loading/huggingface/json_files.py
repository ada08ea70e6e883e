"""Reads JSON files that come with models: bounded in size, objects only.

Knows JSON; nothing of what it means.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from graphml.errors import WeightsError

LARGEST_BYTES = 8 << 20


def read_json(path: Path, largest: int = LARGEST_BYTES) -> dict[str, Any]:
    """The object of a file; WeightsError for any other content, and for more than `largest` bytes."""
    content = _parsed(path, read_text(path, largest))
    if not isinstance(content, dict):
        raise WeightsError(f"{path}: wanted an object; got {type(content).__name__}")
    return content


def read_text(path: Path, largest: int = LARGEST_BYTES) -> str:
    """The text of a plain file of at most `largest` bytes."""
    try:
        if not path.is_file():
            raise WeightsError(f"{path}: wanted a plain file")
        if path.stat().st_size > largest:
            raise WeightsError(f"{path}: cannot be read: it is larger than {largest >> 20} MiB")
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise WeightsError(f"{path}: cannot be read as {path.name}: {error}") from None


def _parsed(path: Path, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise WeightsError(f"{path}: cannot be read as {path.name}: {error}") from None


def with_text_config(config: dict[str, Any]) -> dict[str, Any]:
    """A config with the fields of its language model, where that is a part of a larger one."""
    inner = config.get("text_config")
    return {**config, **inner} if isinstance(inner, dict) else config
