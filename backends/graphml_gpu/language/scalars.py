"""Conversions of NumPy scalars, quickly, for the emulator: making one takes longer than looking it up."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

_SMALL = 4096


@cache
def small(scalar: Any) -> tuple[Any, ...]:
    """The numbers from 0 to 4,095 as scalars of a type."""
    return tuple(map(scalar, range(_SMALL)))


def of_type(scalar: Any, value: int) -> Any:
    """An integer as a scalar of a type."""
    return small(scalar)[value] if 0 <= value < _SMALL else scalar(value)


@cache
def conversion(source: Any, target: Any) -> Callable[[Any], Any]:
    """From one scalar type to another; floats become integers cut, and within bounds; NaN becomes 0."""
    if target is np.bool_:
        return target
    if source is np.bool_:
        return lambda value: target(1) if value else target(0)
    if issubclass(source, np.integer):
        return _of_integer(source, target)
    return _cut(target) if issubclass(target, np.integer) else target


def _of_integer(source: Any, target: Any) -> Callable[[Any], Any]:
    known, least = small(target), source(0)

    def convert(value: Any) -> Any:
        if value >= least:
            try:
                return known[value]
            except IndexError:
                pass
        return target(value)

    return convert


def _cut(target: Any) -> Callable[[Any], Any]:
    bounds, known = np.iinfo(target), small(target)

    def convert(value: Any) -> Any:
        whole = min(max(float(value), float(bounds.min)), float(bounds.max))
        if whole != whole:
            return known[0]
        return known[int(whole)] if 0 <= whole < _SMALL else target(int(whole))

    return convert
