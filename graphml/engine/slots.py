"""Where sequences keep their keys and values: each its slot in a cache, alone or together with others.

Knows numbers of tokens and arrays; nothing of ids, logits or sampling.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphml.backend import State
from graphml.engine.cache import PagedCache
from graphml.engine.compile import CompileOptions
from graphml.engine.executor import BLOCK_SIZE, Executor
from graphml.errors import BackendError


@dataclass
class Slot:
    """Where a session's keys and values lie: the number of a sequence in a cache, and the cache's arrays."""

    cache: PagedCache
    state: State
    sequence: int = 0

    @property
    def length(self) -> int:
        """How many tokens are evaluated."""
        return self.cache.lengths[self.sequence]

    def rewind(self, length: int) -> None:
        """Forget the tokens from `length` on."""
        self.cache.rewind(self.sequence, length)


def make_slots(executor: Executor, options: CompileOptions, n_ctx: int, n_sequences: int = 1) -> list[Slot]:
    """Slots of one cache for so many sequences of `n_ctx` tokens; BackendError without the memory."""
    cache = PagedCache(n_ctx, BLOCK_SIZE, n_sequences)
    try:
        state = executor.state(cache, options)
    except MemoryError:
        raise BackendError(
            f"n_ctx = {n_ctx}: not enough memory for the keys and values of so many tokens"
            f"{f' in {n_sequences} sequences' if n_sequences > 1 else ''}; give less"
        ) from None
    return [Slot(cache, state, sequence) for sequence in range(n_sequences)]
