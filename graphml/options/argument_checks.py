"""Checks of arguments that several parts of the API take: whole numbers, texts, token ids.

Knows values alone; the callers know what they mean.
"""

from __future__ import annotations

import operator
import os
import secrets
from collections.abc import Iterable, Mapping
from typing import Any, SupportsIndex

from graphml.backend import Progress, no_progress
from graphml.errors import UsageError


def whole_number(value: object) -> int | None:
    """Return the value as an int if it is a whole number of any kind, NumPy's too; None for all else.

    A truth value is none, nor is 2.0.
    """
    if type(value) is int:  # each token's id: asking for a protocol takes longer than all else
        return value
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        return None
    try:
        return operator.index(value)
    except TypeError:  # an array of several numbers has the method and refuses
        return None


def count_or_none(name: str, value: object) -> int | None:
    """Return the value as a whole number of at least 0, or None; UsageError for all else."""
    number = whole_number(value)
    if value is not None and (number is None or number < 0):
        raise UsageError(f"{name}: wanted a whole number of at least 0, or None; got {value!r}")
    return number


def count_up_to(name: str, value: object, most: int, what: str) -> int:
    """Return the value as a whole number from 0 to `most`, which is `what`; UsageError for all else."""
    number = whole_number(value)
    if number is None:
        raise UsageError(f"{name}: wanted a whole number, got {value!r}")
    if not 0 <= number <= most:
        raise UsageError(f"{name}: wanted 0 to {most}, {what}; got {value}")
    return number


def seed_or_random(seed: object) -> int:
    """Return a random generator's seed, a random one for None; UsageError unless it is a whole number."""
    number = secrets.randbits(32) if seed is None else whole_number(seed)
    if number is None or number < 0:
        raise UsageError(f"seed: wanted a whole number of at least 0, or None; got {seed!r}")
    return number


def progress_of(value: Progress | None) -> Progress:
    """Return a function that is told (what, done, total), one that does nothing for None; else UsageError."""
    if value is not None and not callable(value):
        raise UsageError(f"progress: wanted a function of (what, done, total), got {value!r}")
    return value or no_progress


def text_of(name: str, value: object) -> str:
    """Return the value if it is a text; UsageError for all else, bytes too."""
    if not isinstance(value, str):
        raise UsageError(f"{name}: wanted text, got {type(value).__name__}")
    return value


def items_of(name: str, value: Any, wanted: str) -> list[Any]:
    """Return what an iterable gives; UsageError for all else, and for texts and bytes."""
    try:
        if not isinstance(value, (str, bytes)) and isinstance(value, Iterable):
            return list(value)
    except TypeError:  # an array of no dimensions has the method and refuses
        pass
    raise UsageError(f"{name}: wanted {wanted}, got {value!r}")


def mapping_of(name: str, value: Any, wanted: str) -> Mapping[Any, Any]:
    """Return the value if it is a mapping; UsageError for all else."""
    if not isinstance(value, Mapping):
        raise UsageError(f"{name}: wanted {wanted}, got {value!r}")
    return value


def path_of(name: str, value: Any) -> str | os.PathLike[str]:
    """Return the value if it is a path; UsageError for all else, bytes too."""
    if not isinstance(value, (str, os.PathLike)):
        raise UsageError(f"{name}: wanted a path, got {value!r}")
    return value


def token_id(value: object) -> int:
    """Return the value as a token id; UsageError unless it is a whole number."""
    number = whole_number(value)
    if number is None:
        raise UsageError(f"token id: wanted a whole number, got {value!r}")
    return number
