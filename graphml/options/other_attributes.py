"""Attributes that other libraries have: the error of one that an object lacks names where the same is here.

Knows names; nothing of what they do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar


class NamesOthers:
    """An object whose `AttributeError` says what to use instead."""

    _instead: ClassVar[Mapping[str, str]] = {}
    """Name in other libraries -> what does the same here."""

    if not TYPE_CHECKING:  # a checker of types reports attributes that are not there by itself

        def __getattr__(self, name: str) -> Any:
            hint = f". Use {self._instead[name]}" if name in self._instead else ""
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{hint}")
