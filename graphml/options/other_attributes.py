"""What objects of other libraries have: the error of an attribute, call or key names where the same is here.

Knows names; nothing of what they do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar


class NamesOthers:
    """An object whose errors, where an attribute is missing or it is called or indexed, say what to use."""

    _instead: ClassVar[Mapping[str, str]] = {}
    """Name in other libraries -> what does the same here; `()` of a call, `[]` of a key."""

    if not TYPE_CHECKING:  # a checker of types reports attributes that are not there by itself

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(self._lacks(f"has no attribute {name!r}", name))

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            """TypeError: it is not called."""
            raise TypeError(self._lacks("is not callable", "()"))

        def __getitem__(self, key: Any) -> Any:
            raise TypeError(self._lacks("is not subscriptable", "[]"))

        def _lacks(self, what: str, name: str) -> str:
            hint = f". Use {self._instead[name]}" if name in self._instead else ""
            return f"{type(self).__name__!r} object {what}{hint}"
