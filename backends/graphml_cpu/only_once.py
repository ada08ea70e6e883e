"""Functions that are made anew, of the same code with the same surroundings, are made into one thing.

Factories of kernels' helpers call each other, often with the same arguments, for one kernel and for the next:
what would be emitted again for each of them is emitted once in a process. Knows functions alone.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, TypeVar, cast

Decorator = TypeVar("Decorator", bound=Callable[..., Any])

# How many of those used last are kept: a kernel has some fifty, and the next kernel of a model many of them.
KEPT = 500
# Functions that were made into something, and as what: `check_unchanged` looks whether they still mean that.
_PENDING: list[tuple[Callable[..., Any], Hashable]] = []


def check_unchanged() -> None:
    """Raise `ValueError` if a function reads a name that was assigned anew after it was decorated."""
    pending = list(_PENDING)
    _PENDING.clear()  # a kernel that is refused leaves nothing to the next
    for function, key in pending:
        if _meaning(function) != key:
            code = function.__code__
            raise ValueError(
                f"{code.co_filename}:{code.co_firstlineno}: what {code.co_name} reads has changed"
            )


def only_once(make: Decorator) -> Decorator:
    """A decorator that makes functions into something, once for all functions that mean the same.

    Those have the same code in the same module, and what they read of the functions around them is equal:
    numbers, strings, tuples of such, or the same callable. That may not change once they are decorated:
    `check_unchanged` looks. Functions that read anything else are made into something of their own each.
    """
    kept: OrderedDict[Hashable, Any] = OrderedDict()

    @functools.wraps(make)
    def once(function: Callable[..., Any]) -> Any:
        try:
            key = _meaning(function)
        except (TypeError, ValueError):  # reads what cannot be compared, or what is not there yet
            return make(function)
        _PENDING.append((function, key))
        if key not in kept:
            kept[key] = make(function)
            if len(kept) > KEPT:
                kept.popitem(last=False)
        kept.move_to_end(key)
        return kept[key]

    return cast(Decorator, once)


def _meaning(function: Callable[..., Any]) -> Hashable:
    """What functions that mean the same have in common; good for as long as the function lives."""
    read = [cell.cell_contents for cell in function.__closure__ or ()]
    defaults = (*(function.__defaults__ or ()), *sorted((function.__kwdefaults__ or {}).items()))
    return function.__code__, id(function.__globals__), _exactly((*read, *defaults))


def _exactly(value: Any) -> Hashable:
    """A key that is equal for equal values of one type only; of a callable for the same one."""
    if isinstance(value, tuple):
        return (type(value), *map(_exactly, value))
    if isinstance(value, float):
        return float, value.hex()  # which tells the zeros apart
    if value is None or isinstance(value, int | str | bytes):
        return type(value), value
    if callable(value):
        return id, id(value)
    raise TypeError(f"{value!r} cannot be compared")
