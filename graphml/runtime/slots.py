"""Where sequences keep keys, values and recurrent states: each its slot in a cache, alone or with others.

Knows numbers of tokens and arrays; nothing of ids, logits or sampling.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphml.backend import State
from graphml.compiler.options import CompileOptions
from graphml.pages import out_of_memory
from graphml.runtime.executor import Executor
from graphml.runtime.memory_needed import state_bytes
from graphml.runtime.paged_cache import PagedCache


@dataclass
class Slot:
    """Where a session's keys, values and states are: the number of a sequence, its cache, and the arrays."""

    cache: PagedCache
    state: State
    sequence: int = 0

    @property
    def length(self) -> int:
        """How many tokens are evaluated."""
        return self.cache.lengths[self.sequence]

    @property
    def source_length(self) -> int:
        """How many tokens of a source text an encoder has read."""
        return 0 if self.cache.source is None else self.cache.source.lengths[self.sequence]

    def rewind(self, length: int) -> None:
        """Forget the tokens from `length` on; see `PagedCache.rewind` for what is left of recurrent ones."""
        self.cache.rewind(self.sequence, length)

    def forget_source(self) -> None:
        """Forget the source text, if there is one."""
        if self.cache.source is not None:
            self.cache.source.rewind(self.sequence, 0)


def make_slots(executor: Executor, options: CompileOptions, n_ctx: int, n_sequences: int = 1) -> list[Slot]:
    """Slots of one cache for so many sequences of `n_ctx` tokens; BackendError without the memory."""
    executor.compiled_for(1, n_sequences, options=options)  # the state is this program's, `recurrent` too
    cache = executor.cache(n_ctx, n_sequences)
    try:
        state = executor.state(cache, options)
    except MemoryError as error:
        wanted = state_bytes(executor, cache.sizes(executor.cell_groups))
        many = f" in {n_sequences} sequences" if n_sequences > 1 else ""
        raise out_of_memory(
            f"n_ctx = {n_ctx}{many}: keys, values and states of {wanted:,} bytes",
            error,
            f"give a smaller n_ctx,{' fewer sequences,' if many else ''} or a smaller type of the cache (kv)",
        ) from None
    return [Slot(cache, state, sequence) for sequence in range(n_sequences)]
