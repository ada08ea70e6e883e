"""A sampling function of the user's own, as a value or as `FILE.py:NAME`.

Knows how it is named, loaded and called; nothing of candidates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from graphml.errors import UsageError
from graphml.loading.discovery import function_from_file

OwnFunction: TypeAlias = Callable[[Any, Any, Sequence[int]], Any]
"""ids int32 [n], logits float32 [n], the token ids so far -> logits, float32 [n]."""


def checked_function(name: str, value: object) -> OwnFunction | None:
    """The function, or that of a text `FILE.py:NAME`, whose file is run; UsageError for anything else."""
    if value in (None, "none"):
        return None
    if callable(value):
        return value
    if not isinstance(value, str) or ":" not in value:
        raise UsageError(
            f"{name}: wanted a function of (ids, logits, history), or FILE.py:NAME; got {value!r}"
        )
    file, _, called = value.rpartition(":")
    try:
        return function_from_file(Path(file), called)
    except UsageError as error:
        raise UsageError(f"{name}: {error}") from error
