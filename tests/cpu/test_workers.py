"""Tapes and worker teams: order, barriers, flags, stopping, closing, forking."""

import os
import threading
import time
import weakref
from dataclasses import replace

import numpy as np
import pytest
from graphml_cpu.compiler import KernelRef, LoadedKernel, compile_kernels
from graphml_cpu.runtime.tape import Tape, TapeStep
from graphml_cpu.runtime.workers import Team

from graphml.errors import BackendError, UsageError
from tests.young_garbage import kept_young

MODULE = "cpu_sample_kernels"


def kernel(name: str) -> LoadedKernel:
    return compile_kernels([KernelRef(name, MODULE, f"make_{name}")])[name]


@pytest.fixture(params=[1, 2, 3, 5, 16, 21])
def team(request: pytest.FixtureRequest):  # type: ignore[no-untyped-def]
    made = Team(request.param)
    yield made
    made.close()


def test_steps_run_in_order_on_the_right_threads(team: Team) -> None:
    count, n = kernel("count"), team.n_threads
    log = np.zeros((n, 1024), np.int64)
    mine = [[count.block(log=log.ctypes.data + 8192 * t, code=c) for t in range(n)] for c in range(5)]
    shared = [count.block(log=log.ctypes.data, code=c) for c in range(5)]

    def addresses(blocks: list[np.ndarray]) -> tuple[int, ...]:
        return tuple(block.ctypes.data for block in blocks)

    steps = [
        TapeStep(count.address, (shared[1].ctypes.data,)),
        TapeStep(count.address, (shared[2].ctypes.data,), serial=True),
        TapeStep(count.address, addresses(mine[3]), replicated=True, barrier=False),
        TapeStep(count.address, (shared[4].ctypes.data,), barrier=False),
    ]
    tape = Tape(steps, n)
    for _ in range(20):
        log[:] = 0
        assert team.run(tape)
        for thread in range(n):
            wanted = [100 + n, *([201] if thread == 0 else []), 301, 400 + n]
            assert list(log[thread, 1 : 1 + log[thread, 0]]) == wanted


@pytest.mark.parametrize("parts", [0, 1, 4])
def test_barriers_hold(team: Team, parts: int) -> None:
    add = kernel("sum_neighbours")
    n = 64
    a, b = np.arange(n), np.zeros(n, np.int64)
    forth = add.block(x=a.ctypes.data, out=b.ctypes.data, n=n)
    back = add.block(x=b.ctypes.data, out=a.ctypes.data, n=n)
    both = [TapeStep(add.address, (block.ctypes.data,), parts=parts) for block in (forth, back)]
    steps = both * 500
    assert team.run(Tape(steps, team.n_threads))
    wanted = np.arange(n)
    for _ in steps:
        wanted = wanted + wanted[::-1] + 1
    np.testing.assert_array_equal(a, wanted)


def test_each_part_is_run_once_whoever_comes_late(team: Team) -> None:
    """Parts that take long, so that threads lose their core in one; each sees that all before are done."""
    note, n, parts = kernel("note_part"), team.n_threads, 4
    runs = np.zeros((150, n * parts), np.int64)
    blocks = [
        note.block(
            before=runs[i - i % 3 - 1].ctypes.data if i >= 3 else 0,
            log=row.ctypes.data,
            n=n * parts,
            pauses=20 + 7 * i % 60,
        )
        for i, row in enumerate(runs)
    ]
    steps = [
        TapeStep(note.address, (block.ctypes.data,), parts=parts, barrier=i % 3 == 2)
        for i, block in enumerate(blocks)
    ]
    tape = Tape(steps, n)
    for times in range(1, 15):
        assert team.run(tape)
        assert (runs == times).all()


def test_steps_of_fewer_owners_are_run_whole(team: Team) -> None:
    """Owners from one thread to all, in an order that changes from stretch to stretch."""
    note, n = kernel("note_part"), team.n_threads
    owners = [1 + i * 7 % n for i in range(90)]
    runs = np.zeros((90, n * 3), np.int64)
    steps, kept = [], []
    for i, own in enumerate(owners):
        block = note.block(
            before=runs[i - i % 3 - 1].ctypes.data if i >= 3 else 0,
            log=runs[i].ctypes.data,
            n=n * 3,
            pauses=5 + 11 * i % 40,
        )
        kept.append(block)
        steps.append(
            TapeStep(note.address, (block.ctypes.data,), parts=1 + i % 4, owners=own, barrier=i % 3 == 2)
        )
    tape = Tape(steps, n)
    for times in range(1, 15):
        assert team.run(tape)
        assert (runs == times).all()


def test_what_a_thread_makes_for_itself_is_its_own_when_it_is_read(team: Team) -> None:
    """Replicated rows that are read behind the next barrier: by those that made them."""
    add, n = kernel("sum_neighbours"), team.n_threads
    size, rounds = 32, 60
    x = np.arange(size)
    own = np.zeros((rounds, n, size), np.int64)
    out = np.zeros((rounds, size), np.int64)
    kept, steps = [], []
    for i in range(rounds):
        source = out[i - 1] if i else x
        mine = [add.block(x=source.ctypes.data, out=own[i, t].ctypes.data, n=size) for t in range(n)]
        read = [add.block(x=own[i, t].ctypes.data, out=out[i].ctypes.data, n=size) for t in range(n)]
        other = np.zeros(size, np.int64)
        between = add.block(x=x.ctypes.data, out=other.ctypes.data, n=size)
        kept += [mine, read, between, other]
        addresses = [tuple(block.ctypes.data for block in blocks) for blocks in (mine, read)]
        steps += [
            TapeStep(add.address, addresses[0], replicated=True),
            TapeStep(add.address, (between.ctypes.data,), parts=2, owners=1 + i % n),
            TapeStep(add.address, addresses[1], parts=3, since=len(steps), owners=1 + i * 5 % n),
        ]
    tape = Tape(steps, n)
    for _ in range(20):
        own[:], out[:] = 0, 0
        assert team.run(tape)
        wanted = x
        for i in range(rounds):
            wanted = wanted + wanted[::-1] + 1
            wanted = wanted + wanted[::-1] + 1
            np.testing.assert_array_equal(out[i], wanted)


def test_stretches_say_who_must_come() -> None:
    def row(*steps: TapeStep) -> list[list[int]]:
        return Tape(list(steps), 2)._stretches.tolist()

    fixed, taken = TapeStep(0, (1,)), TapeStep(0, (1,), parts=4)
    own = TapeStep(0, (1, 1), replicated=True, barrier=False)
    assert row(taken, fixed, own, taken) == [[0, 1, 0, 0, 2], [1, 2, 1, 1, 2], [2, 4, 0, 2, 2]]
    # What step 0 made is read in the third stretch: who runs that was in the first and the second, too.
    late = TapeStep(0, (1,), parts=4, since=0)
    assert row(own, taken, taken, late, taken) == [
        [0, 2, 0, 0, 2], [2, 3, 0, 0, 2], [3, 4, 0, 0, 2], [4, 5, 0, 3, 2],
    ]  # fmt: skip
    # All must come to the last, for which all need what was made in the first.
    assert row(own, taken, taken, TapeStep(0, (1,), since=0)) == [
        [0, 2, 1, 0, 2], [2, 3, 1, 0, 2], [3, 4, 1, 0, 2],
    ]  # fmt: skip


def test_stretches_want_as_many_threads_as_have_parts() -> None:
    def wanted(*steps: TapeStep) -> list[int]:
        return [row[4] for row in Tape(list(steps), 16)._stretches.tolist()]

    three, nine = (TapeStep(0, (1,), parts=1, owners=n) for n in (3, 9))
    own = TapeStep(0, (1,) * 16, replicated=True)
    assert wanted(three, nine, replace(three, barrier=False), nine, own) == [3, 9, 9, 1]
    # What each makes for itself is read two stretches later: by all who are wanted there.
    assert wanted(own, three, replace(nine, since=0)) == [9, 9, 9]
    assert wanted(three, TapeStep(0, (1,))) == [3, 16]


def test_stop_ends_a_run_at_a_barrier(team: Team) -> None:
    wait, count = kernel("wait"), kernel("count")
    log, word = np.zeros((team.n_threads, 1024), np.int64), np.zeros(1, np.int64)
    waiting, counting = wait.block(word=word.ctypes.data), count.block(log=log.ctypes.data, code=1)
    steps = [TapeStep(wait.address, (waiting.ctypes.data,)), TapeStep(count.address, (counting.ctypes.data,))]
    finished: list[bool] = []
    runner = threading.Thread(target=lambda: finished.append(team.run(Tape(steps, team.n_threads))))
    runner.start()
    time.sleep(0.05)
    team.stop()
    word[0] = 1
    runner.join(10)
    assert finished == [False]
    assert (log[:, 0] == 0).all()
    assert team.run(Tape(steps, team.n_threads))  # the next run is not stopped
    assert (log[:, 0] == 1).all()


def test_callers_take_turns() -> None:
    team = Team(2)
    add = kernel("sum_neighbours")
    n = 16

    def work() -> None:
        a, b = np.arange(n), np.zeros(n, np.int64)
        forth = add.block(x=a.ctypes.data, out=b.ctypes.data, n=n)
        tape = Tape([TapeStep(add.address, (forth.ctypes.data,))], 2)
        for _ in range(300):
            team.run(tape)
        np.testing.assert_array_equal(b, a + a[::-1] + 1)
        passed.append(True)

    passed: list[bool] = []
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert passed == [True] * 4
    team.close()


def test_workers_wake_from_sleep() -> None:
    team = Team(2)
    count = kernel("count")
    log = np.zeros((2, 1024), np.int64)
    block = count.block(log=log.ctypes.data, code=1)
    tape = Tape([TapeStep(count.address, (block.ctypes.data,))], 2)

    def run() -> None:
        for pause in (0, 0.001, 0.01, 0.05):
            time.sleep(pause)
            team.run(tape)

    runner = threading.Thread(target=run, daemon=True)
    runner.start()
    runner.join(20)
    assert not runner.is_alive(), "a worker slept through its call"
    assert list(log[:, 0]) == [4, 4]
    team.close()


def test_timed_tapes_measure_each_step() -> None:
    team = Team(2)
    add = kernel("sum_neighbours")
    blocks = []
    for n in (8, 100_000):
        x, out = np.zeros(n, np.int64), np.zeros(n, np.int64)
        blocks.append((add.block(x=x.ctypes.data, out=out.ctypes.data, n=n), x, out))
    tape = Tape([TapeStep(add.address, (block.ctypes.data,)) for block, *_ in blocks], 2, timed=True)
    runs = []
    for _ in range(10):
        team.run(tape)
        runs.append(tape.ticks().copy())
    assert runs[0].shape == (2, 2, 2)
    assert (np.array(runs) >= 0).all()
    least = np.min(runs, axis=0)  # of a run in which the thread kept its core
    assert (least[:, 1, 0] > 20 * least[:, 0, 0]).all()
    team.close()


def test_wrong_use_is_told() -> None:
    team = Team(2)
    with pytest.raises(BackendError, match="a tape for 3 threads on a team of 2"):
        team.run(Tape([], 3))
    with pytest.raises(BackendError, match=r"step 0 \(norm\): 3 parameter blocks for 2 threads"):
        Tape([TapeStep(0, (1, 2, 3), name="norm")], 2)
    with pytest.raises(BackendError, match="1 parameter blocks"):
        Tape([TapeStep(0, (1,), replicated=True)], 2)
    team.close()
    team.close()
    with pytest.raises(BackendError, match="closed"):
        team.run(Tape([], 2))
    with pytest.raises(UsageError, match="threads: 1000"):
        Team(1000)


def test_closing_ends_the_threads() -> None:
    team = Team(3)
    workers = list(team._threads)
    assert all(thread.is_alive() for thread in workers)
    team.close()
    assert not any(thread.is_alive() for thread in workers)


def test_a_forgotten_team_is_collected() -> None:
    with kept_young() as collect:
        team = Team(2)
        worker, seen = team._threads[0], weakref.ref(team)
        del team
        collect()
    assert seen() is None
    assert not worker.is_alive()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_leaves_the_team_behind() -> None:
    team = Team(2)
    team.run(Tape([], 2))
    child = os.fork()
    if child == 0:
        code = 1
        try:
            team.run(Tape([], 2))
        except BackendError as error:
            code = 0 if "fork" in str(error) else 2
        if code == 0 and not Team(2).run(Tape([], 2)):
            code = 3
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert team.run(Tape([], 2))
