"""A group of sequences in one cache, which sessions take and give back: they share steps and prompts.

Memory that is taken only as it is touched makes a group cost what its sessions use. Knows numbers of
sequences, ids and arrays; nothing of sessions, sampling or text.
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphml.backend import LazyStateDevice, State
from graphml.ir.op import Array
from graphml.runtime.executor import Executor
from graphml.runtime.memory_needed import bytes_of_states, free_memory
from graphml.runtime.paged_cache import BLOCK_SIZE, MAX_CELLS, PagedCache, cells_of
from graphml.runtime.shared_steps import SharedSteps
from graphml.runtime.state_rows import copy_rows, state_names

MOST_SEQUENCES = 8
LEAST_SHARED = BLOCK_SIZE  # ids of a common prefix that are worth a copy
_POLL_S = 0.002


def can_share(executor: Executor) -> bool:
    """Whether sessions of a model can be sequences of one cache, at no cost for one that is alone."""
    device, architecture = executor.device, executor.architecture
    lazy = isinstance(device, LazyStateDevice) and device.lazy_states
    plain = architecture.causal and architecture.output == "logits"
    return lazy and plain and not (executor.has_top_k or executor.encodes or executor.recurrent)


def group_size(executor: Executor, n_ctx: int) -> int:
    """How many sequences of `n_ctx` tokens a group has: at most half of the free memory can be touched."""
    sizes = executor.cache(n_ctx).sizes(executor.cell_groups)
    graph = executor.programs.state_graph(1)
    one = bytes_of_states(graph.leaves("state").values(), sizes)
    cells = MAX_CELLS // max(sizes["C"], 1)
    return int(min(MOST_SEQUENCES, executor.n_batch, cells, free_memory() // 2 // max(one, 1)))


@dataclass(eq=False)
class Prompt:
    """A prompt that is being computed: the ids that its sequence holds at the end, and by which thread.

    n_cached: ids that were copied. Whoever began it unsets `active`, at any end: a store that Ctrl-C cannot
    come before.
    """

    ids: Array
    thread: int
    n_cached: int = 0
    active: bool = True


class SlotGroup:
    """Sequences of one cache. `steps`: of all of them.

    known: what a sequence in use holds, as its evaluated ids, or None where that changes just now; of one
    that was given back, the ids that it held last, until it is taken again.
    """

    def __init__(self, executor: Executor, cache: PagedCache, state: State) -> None:
        self._executor, self.cache, self.state = executor, cache, state
        self.steps = SharedSteps(executor, cache, state)
        self._free = deque(range(len(cache.lengths)))
        self._known: dict[int, Callable[[], Sequence[int] | None]] = {}
        self._prompts: dict[int, Prompt] = {}
        self._hidden: set[int] = set()

    @property
    def alone(self) -> bool:
        """Whether one sequence at most is in use."""
        return len(self._free) >= len(self.cache.lengths) - 1

    def take(self) -> int | None:
        """An empty sequence, of those that are free the one given back first; None where all are in use."""
        with self._executor.lock:
            try:
                sequence = self._free.popleft()
            except IndexError:
                return None
            self._known.pop(sequence, None)
            self._hidden.discard(sequence)
            self.cache.rewind(sequence, 0)
            return sequence

    def give_back_with(self, sequence: int, holder: object) -> None:
        """Give a sequence back when its holder is collected."""
        weakref.finalize(holder, self._free.append, sequence).atexit = False

    def tell(self, sequence: int, known: Callable[[], Sequence[int] | None]) -> None:
        """From now on this returns what a sequence holds."""
        self._known[sequence] = known

    def hide(self, sequence: int) -> None:
        """What a sequence holds is of use to no other, as long as it is not taken anew."""
        self._hidden.add(sequence)

    def leave(self, sequence: int, ids: Sequence[int]) -> None:
        """A sequence is used no more; it holds these ids as long as it is not taken."""
        self._known[sequence] = lambda: ids
        self.settle(sequence)
        self.steps.forget(sequence)

    def settle(self, sequence: int) -> None:
        """What an interrupted thread has left of a sequence is over."""
        self._prompts.pop(sequence, None)
        self.steps.settle(sequence)

    def begin(self, sequence: int, prompt: Prompt, cancelled: Callable[[], bool]) -> None:
        """Before a sequence computes a prompt: copy what another holds of it, once that is computed.

        Two ids remain at least: a prompt's last rows run by the same program.
        """
        held = self.cache.lengths[sequence]
        while not cancelled():
            with self._executor.lock:
                n_shared, source = self._longest(sequence, prompt.ids)
                if not self._is_computed(sequence, prompt, max(n_shared, held)):
                    self._prompts[sequence] = prompt
                    if source is not None and n_shared - held >= LEAST_SHARED:
                        self._copy(source, sequence, held, n_shared)
                        prompt.n_cached = n_shared - held
                    return
            time.sleep(_POLL_S)

    def _longest(self, sequence: int, ids: Array) -> tuple[int, int | None]:
        """The longest prefix of ids that another sequence holds, in whole blocks, and whose it is."""
        best: tuple[int, int | None] = (0, None)
        for other, known in list(self._known.items()):
            if other in self._hidden or other == sequence or not self.cache.holds_all(other):
                continue
            held = known()
            if held is not None:
                n_shared = _shared(np.asarray(held, np.int32), ids)
                best = max(best, (n_shared, other), key=lambda one: one[0])
        return best

    def _is_computed(self, sequence: int, prompt: Prompt, n_known: int) -> bool:
        """Whether another thread computes more of these ids than are known."""
        others = [one for other, one in list(self._prompts.items()) if other != sequence and one.active]
        lengths = [_shared(one.ids, prompt.ids) for one in others if one.thread != prompt.thread]
        return max(lengths, default=0) - n_known >= LEAST_SHARED

    def _copy(self, source: int, target: int, start: int, end: int) -> None:
        """Copy the cells of positions `start` to `end` - 1 of one sequence to another, of `start` tokens."""
        cache, executor = self.cache, self._executor
        cache.append(target, end - start)
        names = state_names(executor.programs.state_graph(1).leaves("state").values())
        positions = np.arange(start, end, dtype=np.int32)
        copies: list[tuple[Any, Any]] = [(names.cells, cache)]
        copies += [(names.windows[group.symbol], cache.of_group(group)) for group in executor.cell_groups]
        for of, cells in copies:
            rows = [cells_of(cells.table[one], positions, BLOCK_SIZE) for one in (source, target)]
            copy_rows(self.state, of, *rows)


def _shared(one: Array, ids: Array) -> int:
    """How many ids both begin with, in whole blocks, of `ids` all but two at most."""
    size = min(len(one), len(ids) - 2)
    if size < LEAST_SHARED:
        return 0
    differ = np.flatnonzero(one[:size] != ids[:size])
    return int(differ[0] if len(differ) else size) // BLOCK_SIZE * BLOCK_SIZE
