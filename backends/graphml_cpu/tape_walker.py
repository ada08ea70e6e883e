"""The compiled functions of a worker team: walking a tape, the barrier, waiting for work.

Knows the layout of `graphml_cpu.sync` and of a tape's steps; knows nothing of kernels or Python's threads.
Imports numba: this module is imported only to compile.
"""

from __future__ import annotations

from collections.abc import Callable

from graphml_cpu import sync
from graphml_cpu.compiler import Address, Int
from graphml_cpu.frontend import inline
from graphml_cpu.simd import atomic_add, atomic_load, atomic_store, load_i64, pause, store_i64
from graphml_cpu.simd.atomics import call_address, cycle_counter
from graphml_cpu.tape import BARRIER, REPLICATED, SERIAL, STEP_BYTES

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
def _barrier(words: int, nth: int) -> int:
    """Wait for all threads; whether the run shall stop here, the same answer for every thread."""
    generation = atomic_load(words + sync.GENERATION)
    if atomic_add(words + sync.ARRIVED, 1) == nth - 1:
        atomic_store(words + sync.ARRIVED, 0)
        # The last to arrive decides for all, so that no thread is left behind at the next barrier.
        atomic_store(words + sync.STOPPED, atomic_load(words + sync.STOP))
        atomic_store(words + sync.GENERATION, generation + 1)
    else:
        waited = 0
        while atomic_load(words + sync.GENERATION) == generation:
            _wait_longer(words, waited)
            waited += 1
    stopped: int = atomic_load(words + sync.STOPPED)
    return stopped


@inline
def _walk(words: int, steps: int, count: int, times: int, ith: int, nth: int) -> None:
    """Call every step's entry in order; `times` (0: none) gets the counter before, and twice per step."""
    if times != 0:
        store_i64(times, cycle_counter())
    step = 0
    while step < count:
        entry = load_i64(steps)
        block = load_i64(steps + 8)
        flags = load_i64(steps + 16)
        if flags & REPLICATED != 0:
            call_address(entry, (block, 0, 1))
        elif flags & SERIAL == 0:
            call_address(entry, (block, ith, nth))
        elif ith == 0:
            call_address(entry, (block, 0, 1))
        if times != 0:
            store_i64(times + 8, cycle_counter())
        if flags & BARRIER != 0:
            if nth > 1:
                if _barrier(words, nth) != 0:
                    break
            elif atomic_load(words + sync.STOP) != 0:
                atomic_store(words + sync.STOPPED, 1)
                break
        if times != 0:
            times += 16
            store_i64(times, cycle_counter())
        steps += STEP_BYTES
        step += 1


@inline
def _walk_own(words: int, ith: int, nth: int) -> None:
    """Walk this thread's row of the table: (address of its steps, their number, address of its times)."""
    row = load_i64(words + sync.TABLE) + ith * 24
    _walk(words, load_i64(row), load_i64(row + 8), load_i64(row + 16), ith, nth)


def make_lead() -> Callable[..., None]:
    """The calling thread's part: publish the run, wake the workers, walk as thread 0, wait for the others."""

    def lead(ith: Int, nth: Int, words: Address, table: Address) -> None:
        store_i64(words + sync.TABLE, table)
        atomic_store(words + sync.STOPPED, 0)
        atomic_store(words + sync.DONE, 0)
        atomic_add(words + sync.WORK, 1)
        if nth > 1 and atomic_add(words + sync.SLEEPERS, 0) > 0:
            _wake(words)
        _walk_own(words, 0, nth)
        waited = 0
        while atomic_load(words + sync.DONE) < nth - 1:
            _wait_longer(words, waited)
            waited += 1

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


def make_serve() -> Callable[..., None]:
    """A worker's whole life: wait for a run, walk it, say so, until the team closes."""

    def serve(ith: Int, nth: Int, words: Address) -> None:
        seen = 0
        waited = 0
        while True:
            work = atomic_load(words + sync.WORK)
            if work == seen:
                spins = load_i64(words + sync.SPINS)
                if waited < spins * _IDLE_SPINS:
                    pause()
                elif waited < spins * _IDLE_SPINS + _IDLE_YIELDS:
                    call_address(load_i64(words + sync.YIELD_FUNCTION), (0, 0))
                else:
                    _sleep_until_work(words, seen)
                waited += 1
                continue
            seen = work
            waited = 0
            if atomic_load(words + sync.CLOSING) != 0:
                break
            _walk_own(words, ith, nth)
            atomic_add(words + sync.DONE, 1)

    return serve


def make_close() -> Callable[..., None]:
    """Tell the workers to end: they wake, see it and return."""

    def close(ith: Int, nth: Int, words: Address) -> None:
        atomic_store(words + sync.CLOSING, 1)
        atomic_add(words + sync.WORK, 1)
        _wake(words)

    return close


def make_nothing() -> Callable[..., None]:
    """A kernel that does nothing: what a step costs by itself."""

    def nothing(ith: Int, nth: Int) -> None:
        return

    return nothing
