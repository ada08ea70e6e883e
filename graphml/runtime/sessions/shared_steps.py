"""Steps that sessions of several threads share: a thread computes what others wait for with its own.

A thread brings the next ids of its sequence. If no other thread computes, it does at once; else its ids wait,
and the thread that computes next takes all that wait and fit in one step. There is no thread besides those
of the callers, and a thread that is alone computes as if nothing was shared. The executor's lock alone
keeps steps apart; who leads is a hint, so that an interruption at any place can lose time, but no step.

Knows rows of sequences and threads; nothing of logits, sessions or what they hold.
"""

from __future__ import annotations

import contextlib
import threading
import time
from queue import Empty, SimpleQueue

from graphml.errors import BackendError
from graphml.runtime.sessions.pinned import Part, Pinned

_POLL_S = 0.05
"""A thread that waits looks so often whether it was forgotten: another one may have been interrupted."""
_MOST_WAIT_S, _WAIT_SHARE = 0.005, 0.25
"""A step waits at most so long, and such a share of the last one, for sequences of the steps before it."""


class _Waiting:
    """The rows that a sequence brings; done: they are computed.

    alone: a step with others failed; only its own thread computes it.
    """

    def __init__(self, sequence: Pinned, part: Part) -> None:
        self.sequence, self.part, self.slot = sequence, part, sequence.slot
        self.done = self.alone = False
        self.woken: SimpleQueue[None] = SimpleQueue()


class SharedSteps:
    """The steps of the sequences of one room, each used by one thread at a time.

    lock: the executor's. waiting: by slot, the oldest first.
    """

    def __init__(self, lock: threading.RLock) -> None:
        self._lock = lock
        self.waiting: dict[int, _Waiting] = {}
        self._leading: _Waiting | None = None
        self._arrivals: SimpleQueue[None] | None = None
        self._expected: set[int] = set()  # sequences that met others, and came back since
        self._last_s = 0.0
        self._compiled = self._refused = False

    def run(self, sequence: Pinned, part: Part) -> None:
        """Compute the next rows of a sequence, in a step with others that wait.

        Its outputs are taken in the thread that computes it. An error of a step with others is raised in none
        of them: each is computed once more by itself.
        """
        mine = _Waiting(sequence, part)
        try:
            self.waiting[mine.slot] = mine
            if self._arrivals is not None:
                self._arrivals.put(None)
            while not mine.done:
                if self._leads(mine):
                    self._lead(mine)
                else:
                    with contextlib.suppress(Empty):
                        mine.woken.get(timeout=_POLL_S)
        finally:
            self._leave(mine)

    def settle(self, slot: int) -> None:
        """Nothing is computed for a sequence from now on that an interrupted thread has left waiting."""
        with self._lock:
            self.waiting.pop(slot, None)

    def forget(self, slot: int) -> None:
        """No step waits for a sequence any more."""
        self._expected.discard(slot)

    def _leads(self, mine: _Waiting) -> bool:
        """Whether this thread computes next: no other does, as far as one can see."""
        leading = self._leading
        if leading is None or leading is mine or self.waiting.get(leading.slot) is not leading:
            self._leading = mine
            return True
        self._expected.add(mine.slot)
        return False

    def _leave(self, mine: _Waiting) -> None:
        """Done, or interrupted: then a step that has taken it is awaited first. Another thread may lead."""
        if not mine.done:
            with self._lock:
                self._drop(mine)
        self._drop(mine)
        if self._leading is mine:
            self._leading = None
        for waiting in list(self.waiting.values()):
            waiting.woken.put(None)

    def _drop(self, waiting: _Waiting) -> None:
        if self.waiting.get(waiting.slot) is waiting:
            self.waiting.pop(waiting.slot, None)

    def _lead(self, mine: _Waiting) -> None:
        """Compute one step, of whoever waits; not necessarily `mine`."""
        with self._lock:
            if mine.done:
                return
            taken = self._taken(mine)
            begin = time.perf_counter()
            try:
                self._compute(taken)
            except Exception:
                if taken == [mine]:
                    raise
                for waiting in taken:  # whose fault it was shows when each runs by itself
                    waiting.alone = True
                return
            self._last_s = time.perf_counter() - begin
            for waiting in taken:
                waiting.done = True
                self._drop(waiting)
        if len(taken) > 1:
            self._expected |= {waiting.slot for waiting in taken}
        for waiting in taken:
            waiting.woken.put(None)

    def _compute(self, taken: list[_Waiting]) -> None:
        for waiting in taken:
            start = waiting.part[0].start
            if waiting.sequence.n_computed != start:  # a step before was interrupted
                waiting.sequence.rewind(start)
        taken[0].sequence.room.run({waiting.sequence: waiting.part for waiting in taken})

    def _taken(self, mine: _Waiting) -> list[_Waiting]:
        """What the next step computes: the oldest that waits, and what fits beside it."""
        if mine.alone or self.waiting.get(mine.slot) is not mine or not self._ready(mine):
            return [mine]
        self._await_others(mine)
        left, taken = mine.sequence.room.executor.n_batch, list[_Waiting]()
        for waiting in list(self.waiting.values()):
            count = waiting.part[0].count
            if not waiting.alone and not waiting.done and count <= left:
                taken.append(waiting)
                left -= count
        return taken

    def _ready(self, mine: _Waiting) -> bool:
        """Whether there are programs for steps of several sequences: compiled when two meet first."""
        others = (self._expected | self.waiting.keys()) - {mine.slot}
        if others and not self._compiled and not self._refused:
            room = mine.sequence.room
            executor, n_sequences = room.executor, room.n_sequences
            try:
                for n_tokens in (n_sequences, executor.n_batch):
                    room.compile(n_tokens, n_sequences, False, executor.options)
                self._compiled = True
            except BackendError:  # no memory: they take turns
                self._refused = True
        return self._compiled

    def _await_others(self, mine: _Waiting) -> None:
        """Give those of the last steps a moment to come back, else two groups would take turns."""
        if mine.part[0].count == mine.sequence.room.executor.n_batch:
            return
        end = time.perf_counter() + min(_MOST_WAIT_S, _WAIT_SHARE * self._last_s)
        self._arrivals = arrivals = SimpleQueue[None]()
        try:
            while missing := self._expected - self.waiting.keys():
                left = end - time.perf_counter()
                if left <= 0:
                    self._expected -= missing
                    break
                with contextlib.suppress(Empty):
                    arrivals.get(timeout=left)
        finally:
            self._arrivals = None
