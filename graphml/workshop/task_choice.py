"""Which tasks of a file are scored: llama-perplexity's random ones, by the Mersenne Twister of seed 1.

Knows numbers alone.
"""

from __future__ import annotations

import numpy as np


class _Random:
    """The 32-bit numbers of C++'s `std::mt19937(1)`."""

    def __init__(self) -> None:
        self._state = np.random.RandomState(1)

    def __call__(self) -> int:
        return int(self._state.randint(0, 1 << 32, dtype=np.uint32))

    def below(self, count: int) -> int:
        """What libstdc++'s `std::uniform_int_distribution` gives since GCC 11: Lemire, arXiv:1805.10941.

        C++ leaves it to the library how: programs built with another one choose other tasks.
        """
        product = self() * count
        while product % (1 << 32) < (1 << 32) % count:
            product = self() * count
        return product >> 32


def chosen_from_rest(count: int, wanted: int | None) -> list[int]:
    """Numbers of HellaSwag's tasks in its order: each time one of those left, also where all are wanted."""
    random, left = _Random(), list(range(count))
    return [left.pop(random.below(len(left))) for _ in range(count if wanted is None else min(wanted, count))]


def chosen_evenly(count: int, wanted: int | None) -> list[int]:
    """Numbers of other tasks: all in order; or fewer, each by a float32 share of those that are left.

    The last of these takes the place of the one that was chosen.
    """
    if wanted is None or wanted >= count:
        return list(range(count))
    random, left, chosen = _Random(), list(range(count)), []
    for _ in range(wanted):
        share = np.float32(random()) * np.float32(2.0**-32)
        at = min(int(share * np.float32(len(left))), len(left) - 1)  # 1 where it is rounded up
        chosen.append(left[at])
        left[at] = left[-1]
        left.pop()
    return chosen
