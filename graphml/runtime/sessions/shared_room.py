"""A room whose pinned sequences sessions take and give back: they share steps and prompts.

Memory that is taken only as it is touched makes a room cost what its sessions use. Knows numbers of
sequences, ids and arrays; nothing of sessions, sampling or text.
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from graphml.backend import LazyStateDevice
from graphml.compiler.options import CompileOptions
from graphml.errors import BackendError
from graphml.ir.cells import BLOCK_SIZE, MAX_CELLS
from graphml.ir.long_texts import is_long
from graphml.ir.op import Array
from graphml.runtime.blocks.state_rows import copy_rows
from graphml.runtime.programs.executor import Executor
from graphml.runtime.programs.memory_needed import bytes_of_states
from graphml.runtime.sessions.pinned import Part, Pinned, Room
from graphml.runtime.sessions.shared_steps import SharedSteps
from graphml.system.pages import free_memory

MOST_SEQUENCES = 8
LEAST_SHARED = BLOCK_SIZE  # ids of a common prefix that are worth a copy
_POLL_S = 0.002


def can_share(executor: Executor) -> bool:
    """Whether sessions of a model can be sequences of one room, at no cost for one that is alone."""
    device, architecture = executor.device, executor.architecture
    lazy = isinstance(device, LazyStateDevice) and device.lazy_states
    plain = architecture.causal and architecture.output == "logits"
    return lazy and plain and not (executor.has_top_k or executor.encodes or executor.recurrent)


def room_size(executor: Executor, n_ctx: int) -> int:
    """How many sequences of `n_ctx` tokens a room has: at most half of the free memory can be touched."""
    sizes = executor.pinned_sizes(n_ctx)
    leaves = executor.programs.state_graph(1).leaves("state")
    of_a_sequence = bytes_of_states(leaves.values(), sizes)
    cells = MAX_CELLS // max(sizes["C"], 1)
    return int(min(MOST_SEQUENCES, executor.n_batch, cells, free_memory() // 2 // max(of_a_sequence, 1)))


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


class SharedRoom(Room):
    """Sequences of at most `n_ctx` tokens. `steps`: of all of them.

    known: what a sequence in use holds, as its evaluated ids, or None where that changes just now; of one
    that was given back, the ids that it held last, until it is taken again.
    """

    def __init__(self, executor: Executor, n_ctx: int, n_sequences: int) -> None:
        super().__init__(executor, executor.options, n_ctx, n_sequences, alone=True)
        self.steps = SharedSteps(executor.lock)
        self._free = deque(range(n_sequences))
        self._known: dict[int, Callable[[], Sequence[int] | None]] = {}
        self._prompts: dict[int, Prompt] = {}
        self._hidden: set[int] = set()

    def take(self) -> Pinned | None:
        """An empty sequence, of those that are free the one given back first; None where all are in use.

        It is free again when it is collected.
        """
        with self.executor.lock:
            try:
                slot = self._free.popleft()
            except IndexError:
                return None
            self._known.pop(slot, None)
            self._hidden.discard(slot)
            taken = self.pinned(slot)
            taken.shares = True
            weakref.finalize(taken, self._free.append, slot).atexit = False
            return taken

    def run_with_others(self, sequence: Pinned, part: Part) -> None:
        """See `SharedSteps.run`; alone, a sequence waits for nobody."""
        if len(self._free) >= self.n_sequences - 1:
            self.run({sequence: part})
        else:
            self.steps.run(sequence, part)

    def tell(self, slot: int, known: Callable[[], Sequence[int] | None]) -> None:
        """See `Room`."""
        self._known[slot] = known

    def hide(self, slot: int) -> None:
        """See `Room`."""
        self._hidden.add(slot)

    def leave(self, sequence: Pinned, ids: Sequence[int]) -> None:
        """See `Room`."""
        held = ids if sequence.holds_all else None
        self._known[sequence.slot] = lambda: held
        self.settle(sequence.slot)
        self.steps.forget(sequence.slot)

    def settle(self, slot: int) -> None:
        """See `Room`."""
        self._prompts.pop(slot, None)
        if slot in self.steps.waiting:
            self.steps.settle(slot)

    def prompt(
        self, sequence: Pinned, ids: Array, cancelled: Callable[[], bool] | None
    ) -> contextlib.AbstractContextManager[int]:
        """See `Room`. Where another sequence computes the same beginning just now, its end is awaited."""
        if len(ids) - sequence.n_computed < LEAST_SHARED + 2:
            return contextlib.nullcontext(0)
        return self._prompt(sequence, ids, cancelled)

    @contextlib.contextmanager
    def _prompt(self, sequence: Pinned, ids: Array, cancelled: Callable[[], bool] | None) -> Iterator[int]:
        prompt = Prompt(ids, threading.get_ident())
        try:
            self._begin(sequence, prompt, cancelled)
            yield prompt.n_cached
        finally:
            prompt.active = False

    def _begin(self, sequence: Pinned, prompt: Prompt, cancelled: Callable[[], bool] | None) -> None:
        """Before a sequence computes a prompt: copy what another holds of it, once that is computed.

        Two ids remain at least: a prompt's last rows run by the same program.
        """
        held = sequence.n_computed
        while cancelled is None or not cancelled():
            with self.executor.lock:
                n_shared, source = self._longest(sequence, prompt.ids)
                if not self._is_computed(sequence, prompt, max(n_shared, held)):
                    self._prompts[sequence.slot] = prompt
                    if source is not None and n_shared - held >= LEAST_SHARED:
                        self._copy(source, sequence, n_shared)
                        prompt.n_cached = n_shared - held
                    return
            time.sleep(_POLL_S)

    def _longest(self, sequence: Pinned, ids: Array) -> tuple[int, int | None]:
        """The longest prefix of ids that another sequence holds, in whole blocks, and whose it is."""
        longest: tuple[int, int | None] = (0, None)
        for slot, known in list(self._known.items()):
            held = None if slot in self._hidden or slot == sequence.slot else known()
            if held is not None and not is_long(self.executor.long_inputs, max(len(held), len(ids))):
                n_shared = _shared(np.asarray(held, np.int32), ids)
                longest = max(longest, (n_shared, slot), key=lambda match: match[0])
        return longest

    def _is_computed(self, sequence: Pinned, prompt: Prompt, n_known: int) -> bool:
        """Whether another thread computes more of these ids than are known."""
        others = [
            other for slot, other in list(self._prompts.items()) if slot != sequence.slot and other.active
        ]
        lengths = [_shared(other.ids, prompt.ids) for other in others if other.thread != prompt.thread]
        return max(lengths, default=0) - n_known >= LEAST_SHARED

    def _copy(self, slot: int, target: Pinned, end: int) -> None:
        """Copy the cells of positions from the target's next one to `end` - 1 of another sequence."""
        start, source, names = target.n_computed, self.pinned(slot), self.runner.names
        target.append(end - start)
        for group in (None, *self.executor.cell_groups):
            rows = [sequence.cells(start, end - start, group) for sequence in (source, target)]
            copy_rows(self.runner.state, names.windows[group.symbol] if group else names.cells, *rows)


def session_sequence(executor: Executor, options: CompileOptions, n_ctx: int) -> Pinned:
    """A sequence of at most `n_ctx` tokens: of a shared room where that can be, else of one of its own.

    BackendError without the memory.
    """
    if options.computes_as(executor.options) and can_share(executor):
        with executor.lock:
            rooms = [room for room in executor.shared_rooms if room.n_ctx == n_ctx]
            for room in (*rooms, None):
                shared: SharedRoom | None = room or _made_room(executor, n_ctx)
                taken = None if shared is None else shared.take()
                if taken is not None:
                    return taken
    return Room(executor, options, n_ctx).pinned(0)


def _made_room(executor: Executor, n_ctx: int) -> SharedRoom | None:
    """A new shared room; None where there is no memory for two sequences."""
    size = room_size(executor, n_ctx)
    if size < 2:
        return None
    try:
        room = SharedRoom(executor, n_ctx, size)
    except BackendError:
        return None
    executor.shared_rooms.add(room)
    return room


def _shared(known: Array, ids: Array) -> int:
    """How many ids both begin with, in whole blocks, of `ids` all but two at most."""
    size = min(len(known), len(ids) - 2)
    if size < LEAST_SHARED:
        return 0
    differ = np.flatnonzero(known[:size] != ids[:size])
    return int(differ[0] if len(differ) else size) // BLOCK_SIZE * BLOCK_SIZE
