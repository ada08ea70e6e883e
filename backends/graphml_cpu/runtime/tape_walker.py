"""The compiled functions of a worker team: walking a tape, the barrier, waiting for work.

Knows the layout of `runtime.sync` and of a tape's steps; knows nothing of kernels or Python's threads.
Imports the front end: this module is imported only to compile.
"""

from __future__ import annotations

from collections.abc import Callable

from graphml_cpu.compiler import Address, Int
from graphml_cpu.frontend import inline
from graphml_cpu.runtime import sync
from graphml_cpu.runtime.part_claims import take_parts
from graphml_cpu.runtime.tape import REPLICATED, ROW_BYTES, SERIAL, STEP_BYTES, STRETCH_BYTES
from graphml_cpu.simd import atomic_add, atomic_load, atomic_store, compare_swap, load_i64, pause, store_i64
from graphml_cpu.simd.atomics import call_address, cycle_counter

_FUTEX_WAIT = 128  # FUTEX_WAIT | FUTEX_PRIVATE_FLAG
_FUTEX_WAKE = 129  # FUTEX_WAKE | FUTEX_PRIVATE_FLAG
_EVERYBODY = 1 << 30
# Sleeping comes last: a sleeper makes the others wait beyond their spinning as well. This is 10 ms or so.
_YIELDS = 20000
# An idle worker keeps offering its core for about a millisecond: waking a sleeper takes a third of that.
_IDLE_YIELDS = 2000
_IDLE_SPINS = 6  # times the spins at a barrier


@inline
def _wait_longer(words: int, waited: int) -> None:
    """One turn of waiting: at first a pause, then giving the core away, at last sleeping."""
    spins = load_i64(words + sync.SPINS)
    if waited < spins:
        pause()
    elif waited < spins + _YIELDS:
        call_address(load_i64(words + sync.YIELD_FUNCTION), (0, 0))
    else:
        call_address(load_i64(words + sync.SLEEP_FUNCTION), (load_i64(words + sync.SLEEP_ARGUMENT), 0))


@inline
def _wait_for_others(words: int, waited: int, since: int) -> int:
    """One turn of waiting within a run: when the thread began to wait longer than it spins, else 0."""
    if since == 0 and waited >= load_i64(words + sync.SPINS):
        since = cycle_counter()
    _wait_longer(words, waited)
    return since


@inline
def _note_late(words: int, ith: int, since: int) -> None:
    """Add up a long wait that is over."""
    if since != 0:
        at = words + sync.CLAIMS + ith * sync.CLAIM_BYTES + sync.LATE
        store_i64(at, load_i64(at) + cycle_counter() - since)


@inline
def _look(words: int) -> int:
    """The word that tells which stretch is open, and whether a run is on."""
    shown: int = atomic_load(words + load_i64(words + sync.LOOKED_AT))
    return shown


@inline
def _tell(words: int, state: int) -> None:
    """Show what STATE has become to those who wait, where they do not look at STATE itself.

    With it who is wanted, so that no thread outside of a stretch reads the tape, which may be gone.
    """
    if load_i64(words + sync.LOOKED_AT) == sync.STATE:
        return
    shown = (state >> sync.STRETCH_SHIFT) << sync.STRETCH_SHIFT
    if state & sync.ACTIVE != 0:
        stretch = (state >> sync.STRETCH_SHIFT) - load_i64(words + sync.FIRST_STRETCH)
        at = load_i64(load_i64(words + sync.TABLE) + 24) + stretch * STRETCH_BYTES
        back = min(stretch - load_i64(at + 24), sync.COUNT_MASK)
        shown += sync.ACTIVE + back * sync.LEFT + load_i64(at + 32)
    atomic_store(words + sync.OPEN, shown)


@inline
def _is_wanted(words: int, shown: int, seen: int, since: int, ith: int) -> bool:
    """Whether a thread takes part in a stretch: as one of its members, or as one that has what it reads."""
    if load_i64(words + sync.LOOKED_AT) == sync.STATE or ith < shown & sync.COUNT_MASK:
        return True
    stretch, back = shown >> sync.STRETCH_SHIFT, (shown // sync.LEFT) & sync.COUNT_MASK
    return back > 0 and stretch == seen + 1 and since <= stretch - back


@inline
def _join(words: int, seen: int) -> int:
    """Enter the open stretch, if it is another than `seen`; its number, or -1."""
    state = atomic_load(words + sync.STATE)
    while state & sync.ACTIVE != 0 and state >> sync.STRETCH_SHIFT != seen:
        if compare_swap(words + sync.STATE, state, state + sync.MEMBER):
            stretch: int = state >> sync.STRETCH_SHIFT
            return stretch
        state = atomic_load(words + sync.STATE)
    return -1


@inline
def _leave(words: int, nth: int, everyone: int, is_last: bool, has_worked: bool) -> bool:
    """Leave the open stretch; the last one out opens the next and is in it: whether it was this thread.

    Every part of every step is taken when a thread that works gets here, and done when all have left. One
    that could not work opens the next only behind one that could.
    """
    while True:
        state = atomic_load(words + sync.STATE)
        others, left = (state & sync.COUNT_MASK) - 1, (state // sync.LEFT) & sync.COUNT_MASK
        if has_worked:
            left += 1
        goes_on = False
        if others == 0 and left > 0 and (everyone == 0 or left == nth):
            following = ((state >> sync.STRETCH_SHIFT) + 1) << sync.STRETCH_SHIFT
            # The last one decides for all, so that no thread is left behind at the next barrier.
            stop = atomic_load(words + sync.STOP)
            atomic_store(words + sync.STOPPED, stop)
            goes_on = not is_last and stop == 0
            if goes_on:
                following += sync.ACTIVE + sync.MEMBER
        else:
            following = state - sync.MEMBER
            if has_worked:
                following += sync.LEFT
        if compare_swap(words + sync.STATE, state, following):
            if following >> sync.STRETCH_SHIFT != state >> sync.STRETCH_SHIFT:
                _tell(words, following)  # this thread is in it: it cannot be over before this is told
            return goes_on


@inline
def _run_step(words: int, row: int, step: int, ith: int, nth: int) -> None:
    at = load_i64(row) + step * STEP_BYTES
    entry, block, flags, shares = load_i64(at), load_i64(at + 8), load_i64(at + 16), load_i64(at + 24)
    if flags & REPLICATED != 0:
        call_address(entry, (block, 0, 1))
    elif flags & SERIAL != 0:
        if ith == 0:
            call_address(entry, (block, 0, 1))
    elif shares == 0 or nth == 1:
        call_address(entry, (block, ith, nth))
    else:
        take_parts(words, load_i64(words + sync.FIRST_STEP) + step, entry, block, shares, ith, nth)


@inline
def _run_stretch(words: int, row: int, begin: int, end: int, ith: int, nth: int) -> None:
    """All steps of a stretch.

    A timed tape notes the counter at the beginning, and after the work of each step and the wait behind it.
    """
    times = load_i64(row + 16)
    if times != 0:
        store_i64(times + begin * 16, cycle_counter())  # the wait behind the step before
    for step in range(begin, end):
        _run_step(words, row, step, ith, nth)
        if times != 0:
            now = cycle_counter()
            store_i64(times + step * 16 + 8, now)
            store_i64(times + step * 16 + 16, now)


@inline
def _walk(words: int, stretch: int, since: int, ith: int, nth: int) -> tuple[int, int]:
    """From a stretch that this thread is in, for as long as it opens the next.

    `since`: the first of those that it has been in without a gap. Returns the last one, and that.
    """
    while True:
        row, first = load_i64(words + sync.TABLE) + ith * ROW_BYTES, load_i64(words + sync.FIRST_STRETCH)
        at = load_i64(row + 24) + (stretch - first) * STRETCH_BYTES
        can = since - first <= load_i64(at + 24)
        if can:
            _run_stretch(words, row, load_i64(at), load_i64(at + 8), ith, nth)
        is_last = stretch - first + 1 == load_i64(row + 32)
        if not can:
            since = stretch + 1
        if not _leave(words, nth, load_i64(at + 16), is_last, can):
            return stretch, since
        stretch += 1


@inline
def _continue(words: int, seen: int, since: int, late_since: int, ith: int, nth: int) -> tuple[int, int]:
    """Enter the open stretch, if it is another than `seen`, and walk on: `_walk`'s results, or the same.

    A stretch that does not need this thread counts as seen.
    """
    shown = _look(words)
    stretch = shown >> sync.STRETCH_SHIFT
    if shown & sync.ACTIVE == 0 or stretch == seen:
        return seen, since
    if not _is_wanted(words, shown, seen, since, ith):
        return stretch, stretch + 1
    stretch = _join(words, seen)
    if stretch < 0:
        return seen, since
    _note_late(words, ith, late_since)
    if stretch != seen + 1:
        since = stretch
    return _walk(words, stretch, since, ith, nth)


def make_lead() -> Callable[..., None]:
    """The calling thread's part: publish the run, wake the workers, walk as thread 0, wait for the others."""

    def lead(ith: Int, nth: Int, words: Address, table: Address) -> None:
        if load_i64(table + 32) == 0:
            if load_i64(table + 16) != 0:
                store_i64(load_i64(table + 16), cycle_counter())
            return
        begun = cycle_counter()
        # No thread is in a stretch between runs, so nobody reads these.
        stretch = (atomic_load(words + sync.STATE) >> sync.STRETCH_SHIFT) + 1
        step = load_i64(words + sync.NEXT_STEP)
        store_i64(words + sync.TABLE, table)
        store_i64(words + sync.FIRST_STRETCH, stretch)
        store_i64(words + sync.FIRST_STEP, step)
        store_i64(words + sync.NEXT_STEP, step + load_i64(table + 8))
        state = (stretch << sync.STRETCH_SHIFT) + sync.ACTIVE + sync.MEMBER
        atomic_store(words + sync.STATE, state)
        _tell(words, state)
        atomic_add(words + sync.WORK, 1)
        left_out = nth - load_i64(words + sync.LIMIT)  # who asleep may stay so
        if nth > 1 and atomic_add(words + sync.SLEEPERS, 0) > left_out:
            _wake(words)
        seen, since = _walk(words, stretch, stretch, 0, nth)
        waited = 0
        late_since = 0
        while _look(words) & sync.ACTIVE != 0:
            before = seen
            seen, since = _continue(words, seen, since, late_since, 0, nth)
            if seen == before:
                late_since = _wait_for_others(words, waited, late_since)
                waited += 1
            else:
                late_since = 0
                waited = 0
        _note_late(words, 0, late_since)
        store_i64(words + sync.TAKEN, load_i64(words + sync.TAKEN) + cycle_counter() - begun)
        if load_i64(table + 16) != 0:
            # The wait behind the last step.
            store_i64(load_i64(table + 16) + load_i64(table + 8) * 16, cycle_counter())

    return lead


@inline
def _wake(words: int) -> None:
    function = load_i64(words + sync.FUTEX_FUNCTION)
    if function != 0:
        number = load_i64(words + sync.FUTEX_NUMBER)
        call_address(function, (number, words + sync.WORK, _FUTEX_WAKE, _EVERYBODY, 0, 0))


@inline
def _sleep_until_work(words: int, seen: int) -> None:
    function = load_i64(words + sync.FUTEX_FUNCTION)
    if function == 0:
        call_address(load_i64(words + sync.SLEEP_FUNCTION), (load_i64(words + sync.SLEEP_ARGUMENT) * 4, 0))
        return
    atomic_add(words + sync.SLEEPERS, 1)
    number = load_i64(words + sync.FUTEX_NUMBER)
    # The system puts the thread to sleep only if the word still holds what was seen.
    call_address(function, (number, words + sync.WORK, _FUTEX_WAIT, seen, 0, 0))
    atomic_add(words + sync.SLEEPERS, -1)


@inline
def _wait_for_work(words: int, waited: int, work: int) -> None:
    spins = load_i64(words + sync.SPINS)
    if waited < spins * _IDLE_SPINS:
        pause()
    elif waited < spins * _IDLE_SPINS + _IDLE_YIELDS:
        call_address(load_i64(words + sync.YIELD_FUNCTION), (0, 0))
    else:
        _sleep_until_work(words, work)


def make_serve() -> Callable[..., None]:
    """A worker's whole life: wait for a run, walk it, say so, until the team closes."""

    def serve(ith: Int, nth: Int, words: Address) -> None:
        seen = -1
        since = -1
        waited = 0
        idle = 0
        late_since = 0
        while True:
            work, before = atomic_load(words + sync.WORK), seen
            may = ith < load_i64(words + sync.LIMIT)
            if may:
                seen, since = _continue(words, seen, since, late_since, ith, nth)
            if seen != before:
                late_since = 0
                waited = 0
                idle = 0
                continue
            if may and _look(words) & sync.ACTIVE != 0:
                late_since = _wait_for_others(words, waited, late_since)
                waited += 1
                idle = 0
                continue
            _note_late(words, ith, late_since)
            late_since = 0
            waited = 0
            if atomic_load(words + sync.CLOSING) != 0:
                break
            _wait_for_work(words, idle, work)
            idle += 1

    return serve


def make_close() -> Callable[..., None]:
    """Tell the workers to end: they wake, see it and return."""

    def close(ith: Int, nth: Int, words: Address) -> None:
        atomic_store(words + sync.CLOSING, 1)
        atomic_add(words + sync.WORK, 1)
        _wake(words)

    return close
