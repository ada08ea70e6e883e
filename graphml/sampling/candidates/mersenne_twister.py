"""The random numbers of llama.cpp's samplers: `std::mt19937` and the distributions of libstdc++.

Matsumoto and Nishimura 1998, "Mersenne Twister". Knows nothing of what they are for.
"""

from __future__ import annotations

import numpy as np

from graphml.errors import UsageError

MAX_USED = 1 << 28
"""More outputs than any sequence uses; what is restored is run through again."""
_BELOW_ONE = float(np.nextafter(np.float32(1), np.float32(0)))


class MersenneTwister:
    """`std::mt19937(seed)`; of a seed its lower 32 bits count. n_used: how many 32-bit outputs were taken."""

    def __init__(self, seed: int, n_used: int = 0) -> None:
        self.seed = seed & 0xFFFFFFFF
        self.n_used = n_used
        self._bits = np.random.MT19937()
        self._bits._legacy_seeding(self.seed)  # init_genrand, as the standard says
        if n_used:
            self._bits.random_raw(n_used, output=False)

    def copy(self) -> MersenneTwister:
        """Another one that gives the same numbers from here on."""
        copied = MersenneTwister(self.seed)
        copied._bits.state, copied.n_used = self._bits.state, self.n_used
        return copied

    def double(self) -> float:
        """`std::uniform_real_distribution<double>(0, 1)`: two outputs, the lower one first."""
        self.n_used += 2
        low, high = int(self._bits.random_raw()), int(self._bits.random_raw())
        return (low + high * 2.0**32) / 2.0**64

    def single(self) -> float:
        """`std::uniform_real_distribution<float>(0, 1)`: one output."""
        self.n_used += 1
        return min(float(np.float32(self._bits.random_raw()) / np.float32(2.0**32)), _BELOW_ONE)

    def saved(self) -> list[int]:
        """Which numbers come next, as JSON can hold it."""
        return [self.seed, self.n_used]

    @staticmethod
    def restored(saved: object) -> MersenneTwister:
        """The generator that was `saved`; UsageError for what is none."""
        if isinstance(saved, list) and len(saved) == 2 and all(type(number) is int for number in saved):
            seed, n_used = saved
            if 0 <= seed <= 0xFFFFFFFF and 0 <= n_used <= MAX_USED:
                return MersenneTwister(seed, n_used)
        raise UsageError(f"random: wanted seed and count of a Mersenne twister, got {saved!r:.80}")
