"""Where sequences keep keys, values and recurrent states: each its slot in a cache, alone or with others.

Knows numbers of tokens and arrays; nothing of ids, logits or sampling.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from graphml.backend import RowCopies, State
from graphml.compiler.options import CompileOptions
from graphml.compiler.row_copies import row_copies
from graphml.errors import BackendError
from graphml.ir.cell_groups import CellGroup
from graphml.ir.node import Node
from graphml.ir.op import Array
from graphml.ir.shape import fixed
from graphml.runtime.executor import Executor
from graphml.runtime.memory_needed import state_bytes
from graphml.runtime.paged_cache import PagedCache, cells_of
from graphml.runtime.slot_group import SlotGroup, can_share, group_size
from graphml.runtime.state_rows import state_names
from graphml.system.pages import out_of_memory

MOST_COPIES = 4  # of the states of a recurrent sequence
COPIES_BYTES = 256 << 20  # of all sequences of a cache


class StateCopies:
    """Copies of the recurrent states of a cache's sequences: `most` of each, made when the first is kept.

    And one behind those, of before the latest draft. Where there is no memory for them there are none.
    """

    def __init__(self, state: State, leaves: Sequence[Node], n_sequences: int) -> None:
        one = sum(node.dtype.bytes_for(math.prod(map(fixed, node.shape[1:]))) for node in leaves)
        self.most = min(MOST_COPIES, COPIES_BYTES // max(one * n_sequences, 1)) if leaves else 0
        self._state, self._names, self._n_sequences = state, [node.name for node in leaves], n_sequences
        self._copies: RowCopies | None = None
        self._none = not leaves

    def keep(self, sequence: int, at: int) -> bool:
        """Copy the states of a sequence to its copy `at`; whether there is memory for it."""
        if self._none:
            return False
        if self._copies is None:
            try:
                self._copies = row_copies(self._state, self._names, (self.most + 1) * self._n_sequences)
            except (MemoryError, BackendError):
                self.most, self._none = 0, True
                return False
        self._copies.keep(sequence, sequence * (self.most + 1) + at)
        return True

    def restore(self, sequence: int, at: int) -> None:
        """Copy its copy `at` to the states of a sequence."""
        assert self._copies is not None
        self._copies.restore(sequence * (self.most + 1) + at, sequence)


@dataclass
class Slot:
    """Where a session's keys, values and states are: the number of a sequence, its cache, and the arrays.

    copies: of recurrent states, where some may be kept. group: of sequences that other sessions have.
    """

    cache: PagedCache
    state: State
    sequence: int = 0
    copies: StateCopies | None = None
    group: SlotGroup | None = None

    def leave_group(self) -> None:
        """Share no steps and no prompts any more: what it holds is computed otherwise from now on."""
        if self.group is not None:
            self.group.tell(self.sequence, lambda: None)
            self.group = None

    @property
    def length(self) -> int:
        """How many tokens are evaluated."""
        return self.cache.lengths[self.sequence]

    @property
    def source_length(self) -> int:
        """How many tokens of a source text an encoder has read."""
        return 0 if self.cache.source is None else self.cache.source.lengths[self.sequence]

    def cells(self, first: int, count: int, group: CellGroup | None = None) -> Array:
        """The cells of `count` positions from `first` on, int32 [count], in a group of layers."""
        positions = np.arange(first, first + count, dtype=np.int32)
        cache = self.cache if group is None else self.cache.of_group(group)
        return cells_of(cache.table[self.sequence], positions, self.cache.block_size)

    def rewind(self, length: int) -> None:
        """Forget the tokens from `length` on; see `PagedCache.rewind` for what is left of recurrent ones."""
        self.cache.rewind(self.sequence, length)

    def restore_states(self) -> None:
        """Have the recurrent states be those of the tokens that it holds; before a step of it."""
        states = self.cache.states
        if states is None or self.copies is None:
            return
        copy = states.to_restore(self.sequence, self.length)
        if copy is not None:
            self.copies.restore(self.sequence, copy.at)
            states.read[self.sequence] = copy.n

    def keep_states(self) -> None:
        """Keep a copy of the recurrent states as they are, to which a later `rewind` can go back."""
        states = self.cache.states
        if states is None or self.copies is None:
            return
        copy = states.to_keep(self.sequence, self.length, self.copies.most)
        if copy is not None and self.copies.keep(self.sequence, copy.at):
            states.kept(self.sequence, copy)

    def keep_before_draft(self) -> bool:
        """Keep a copy of the recurrent states, of which there is one, to go back to where a draft is wrong.

        Whether a draft can be taken back: there was memory, or there are no such states.
        """
        states, copies = self.cache.states, self.copies
        if states is None or copies is None:
            return states is None
        self.restore_states()
        copy = states.to_keep_in(copies.most, self.sequence, self.length)
        if copy is None:
            return True
        if not copies.keep(self.sequence, copy.at):
            return False
        states.kept(self.sequence, copy)
        return True

    def forget_source(self) -> None:
        """Forget the source text, if there is one."""
        if self.cache.source is not None:
            self.cache.source.rewind(self.sequence, 0)


def session_slot(executor: Executor, options: CompileOptions, n_ctx: int) -> Slot:
    """A slot for one sequence of `n_ctx` tokens: of a group of others where that is free, else by itself.

    BackendError without the memory.
    """
    if options.computes_as(executor.options) and can_share(executor):
        with executor.lock:
            groups = [group for group in executor.slot_groups if group.cache.n_ctx == n_ctx]
            for group in (*groups, None):
                made = group or _made_group(executor, n_ctx)
                sequence = None if made is None else made.take()
                if made is not None and sequence is not None:
                    slot = Slot(made.cache, made.state, sequence, group=made)
                    made.give_back_with(sequence, slot)
                    return slot
    (slot,) = make_slots(executor, options, n_ctx)
    return slot


def _made_group(executor: Executor, n_ctx: int) -> SlotGroup | None:
    """A new group of sequences; None where there is no memory for two."""
    size = group_size(executor, n_ctx)
    if size < 2:
        return None
    try:
        first, *_ = make_slots(executor, executor.options, n_ctx, size, apart=True)
    except BackendError:
        return None
    group = SlotGroup(executor, first.cache, first.state)
    executor.slot_groups.add(group)
    return group


def make_slots(
    executor: Executor, options: CompileOptions, n_ctx: int, n_sequences: int = 1, apart: bool = False
) -> list[Slot]:
    """Slots of one cache for so many sequences of `n_ctx` tokens; BackendError without the memory.

    apart: see `PagedCache`.
    """
    cache = executor.cache(n_ctx, n_sequences, apart)
    graph = executor.programs.state_graph(cache.n_program(1), options)
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
    leaves = graph.leaves("state")
    rows = [leaves[name] for name in state_names(leaves.values()).sequences]
    copies = StateCopies(state, rows, n_sequences) if rows else None
    return [Slot(cache, state, sequence, copies) for sequence in range(n_sequences)]
