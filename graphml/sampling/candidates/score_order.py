"""The order of scores: highest first, equal ones by position. One order, whoever computes it.

Knows float32 numbers; no candidates. A backend may lend a compiled sort, which long rows are then given to.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from graphml.backend import RowOrder

Floats: TypeAlias = NDArray[np.float32]
Indices: TypeAlias = NDArray[np.int64]

_LONG = 4096  # scores from which on compiled loops are worth their call
_lent: list[RowOrder] = []


def lend(loops: RowOrder) -> None:
    """Let long rows be sorted by compiled loops from now on; they give the very order of `descending`."""
    _lent[:] = [loops]


def compiled(n: int) -> RowOrder | None:
    """The compiled loops for a row of so many scores; None where there are none, or it is short."""
    return _lent[0] if _lent and n >= _LONG else None


def descending(scores: Floats, positions: Indices | None = None) -> Indices:
    """The positions of scores (None: all), by their scores.

    NumPy sorts integers with SIMD, and its stable sort of floats is ten times slower: so integers that hold
    the score and the position are sorted.
    """
    own = scores if positions is None else np.take(scores, positions)
    loops = compiled(len(own))
    if loops is not None and positions is None:
        order: Indices = loops.descending(own)
        return order
    # Adding 0.0 makes -0.0 equal to 0.0 bit by bit. Flipping the bits below the sign of a negative float
    # makes the integer order the float order; the complement turns it round.
    bits = (own + np.float32(0.0)).view(np.int32)
    falling = bits >> 31
    falling &= 0x7FFFFFFF
    falling ^= bits
    np.invert(falling, out=falling)
    keys = falling.astype(np.int64)
    keys <<= 32
    keys |= _every_position(len(own)) if positions is None else positions
    keys.sort()
    indices: Indices = keys & 0xFFFFFFFF
    return indices


@lru_cache(maxsize=8)
def _every_position(count: int) -> Indices:
    positions = np.arange(count, dtype=np.int64)
    positions.setflags(write=False)
    return positions
