"""What objects of other libraries have: by their name it is found here, else the error says what to use.

Knows names; nothing of what they do.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar

from graphml.errors import UsageError, similar


class NamesOthers:
    """An object with other libraries' names of its attributes, and errors that say what to use for others."""

    __slots__ = ()
    _same: ClassVar[Mapping[str, str]] = {}
    """Name in other libraries -> our attribute, "a" or "a.b", with the same meaning; `()` of a call."""
    _instead: ClassVar[Mapping[str, str]] = {}
    """Name in other libraries -> what does the same here; `()` of a call, `[]` of a key."""
    _made_by: ClassVar[str] = ""
    """What makes one of a path, as an error says where the class itself is given a path."""

    if not TYPE_CHECKING:  # a checker of types reports attributes that are not there by itself

        def __getattr__(self, name: str) -> Any:
            if name in self._same:
                return attrgetter(self._same[name])(self)
            # With its own suggestion Python would name private attributes, too.
            raise AttributeError(self._lacks(f"has no attribute {name!r}", name), name=None)

        def __init_subclass__(cls, **kwargs: Any) -> None:
            super().__init_subclass__(**kwargs)
            if "()" in cls.__dict__.get("_same", {}):
                cls.__call__ = lambda self, *args, **kwargs: getattr(self, self._same["()"])(*args, **kwargs)
            if "_made_by" in cls.__dict__:
                cls.__new__ = _opened_elsewhere(cls.__dict__["_made_by"])
            for name, method in (("()", "__call__"), ("[]", "__getitem__")):
                if name in cls.__dict__.get("_instead", {}):  # others stay what is not called and has no keys
                    setattr(cls, method, _wrong_use(name))

        def _lacks(self, what: str, name: str) -> str:
            hint = f". Use {self._instead[name]}" if name in self._instead else ""
            if not hint and not name.startswith("_"):  # which Python asks for now and then
                public = [known for known in dir(self) if known[0] != "_" and known != name]
                hint = "".join(f". Did you mean {near!r}?" for near in similar(name, public, 1, 0.75))
            return f"{type(self).__name__!r} object {what}{hint}"


def _opened_elsewhere(made_by: str) -> Any:
    def new(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if args and isinstance(args[0], str | os.PathLike):
            raise UsageError(f"{cls.__name__}: made by {made_by}; got {args[0]!r:.80}")
        return object.__new__(cls)

    return staticmethod(new)


def _wrong_use(name: str) -> Any:
    what = "is not callable" if name == "()" else "is not subscriptable"

    def wrong(self: Any, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(self._lacks(what, name))

    return wrong
