"""Rows of caches in units that are fetched first and unpacked later, so that many fetches can be under way.

A unit is eight halves where a cache is bound as u32x4, else two fours, or one where a row has an odd number.
Knows rows and units; nothing of positions.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from graphml_gpu.kernels.attention.cache_loads import ELEMENTS
from graphml_gpu.language import f32x4, function, u32, u32x4, unroll

UnitLoad = Callable[..., Any]
"""A `CacheLoad`; for an array of u32x4 what unpacks four elements of two words."""
WIDE_PAIRS = tuple(itertools.product((*ELEMENTS, u32x4), repeat=2))
"""What keys and values are bound as arrays of."""


def fours_of(width: int) -> int:
    """Fours of a row."""
    return -(-width // 4)


def fours_at_once(width: int) -> int:
    """Fours of a unit."""
    return 2 if width % 8 == 0 else 1


def units_of(width: int) -> int:
    """Units of a row."""
    return fours_of(width) // fours_at_once(width)


def fetches(width: int, lanes: int) -> int:
    """Units of a row that each of some lanes fetches."""
    return -(-units_of(width) // lanes)


def kept_as(element: Any) -> Any:
    """The type of what is kept of a unit: words of halves as they are, else fours of numbers."""
    return u32x4 if element == u32x4 else f32x4


def kept_of(element: Any, width: int) -> int:
    """How many of these are kept of a unit."""
    return 1 if element == u32x4 else fours_at_once(width)


@function
def fetch(
    cache: Any, kept: Any, at: int, row: u32, unit: u32, ELEMENT: Any, WIDTH: int, LOAD: UnitLoad
) -> None:
    """Keep a unit of a row as number `at`."""
    if u32x4 == ELEMENT:
        kept[at] = cache[row * units_of(WIDTH) + unit]
    else:
        for i in unroll(fours_at_once(WIDTH)):
            kept[at * fours_at_once(WIDTH) + i] = LOAD(cache, row, unit * fours_at_once(WIDTH) + i, WIDTH)


@function
def four_of(kept: Any, at: int, i: int, ELEMENT: Any, WIDTH: int, LOAD: UnitLoad) -> Any:
    """Four i of the unit that is kept as number `at`."""
    if u32x4 == ELEMENT:
        return LOAD(kept[at][2 * i], kept[at][2 * i + 1])
    return kept[at * fours_at_once(WIDTH) + i]
