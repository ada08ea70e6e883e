"""Barriers stand exactly where one thread may touch what another wrote or still reads."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from graphml_cpu.compiler import KernelRef
from graphml_cpu.lowering.step import Argument, KernelCall
from graphml_cpu.runtime.hazards import MemoryRegion, Touched, barriers, latest, made_before, touched_by

KERNEL = KernelRef("k", module="m", factory="f")


@dataclass
class Named:
    """Arguments are numbers here; each stands for a region."""

    regions: dict[int, MemoryRegion]

    def region(self, argument: Argument) -> MemoryRegion | None:
        assert isinstance(argument, int)
        return self.regions.get(argument)


A, B, C = (MemoryRegion("arena", 64 * i, 64 * i + 64) for i in range(3))
OVER_A = MemoryRegion("arena", 32, 48)
MINE = MemoryRegion("arena", 256, 512, private=True)
STATE = MemoryRegion("cache", 0, 1)
PLACES = Named({1: A, 2: B, 3: C, 4: OVER_A, 5: MINE, 6: STATE, 7: MemoryRegion("arena", 256, 384)})


def step(reads: tuple[int, ...], writes: tuple[int, ...]) -> KernelCall:
    arguments = {f"r{i}": value for i, value in enumerate(reads)}
    arguments |= {f"w{i}": value for i, value in enumerate(writes)}
    return KernelCall(KERNEL, arguments, writes=tuple(f"w{i}" for i in range(len(writes))))


@pytest.mark.parametrize(
    ("steps", "waits"),
    [
        pytest.param([((1,), (2,)), ((1,), (3,))], [False, True], id="both only read"),
        pytest.param([((1,), (2,)), ((2,), (3,))], [True, True], id="read after write"),
        pytest.param([((1,), (2,)), ((3,), (1,))], [True, True], id="write after read"),
        pytest.param([((), (1,)), ((), (1,))], [True, True], id="write after write"),
        pytest.param([((), (1,)), ((4,), (2,))], [True, True], id="part of it"),
        pytest.param([((), (5,)), ((5,), (1,))], [False, True], id="each thread its own"),
        pytest.param([((), (5,)), ((7,), (1,))], [True, True], id="own memory under another name"),
        pytest.param([((), (6,)), ((6,), (1,))], [True, True], id="state"),
        pytest.param([((0,), (1,)), ((0,), (2,)), ((1, 2), (3,))], [False, True, True], id="weights never"),
        pytest.param(
            [((), (1,)), ((1,), (2,)), ((1,), (3,))], [True, False, True], id="one barrier serves two"
        ),
    ],
)
def test_barriers(steps: list[tuple[tuple[int, ...], tuple[int, ...]]], waits: list[bool]) -> None:
    assert barriers(steps_of(*steps)) == waits


def test_no_steps() -> None:
    assert barriers([]) == []


def steps_of(*given: tuple[tuple[int, ...], tuple[int, ...]]) -> list[Touched]:
    return [touched_by(step(reads, writes), PLACES) for reads, writes in given]


def test_a_barrier_stands_before_what_each_thread_makes_for_itself() -> None:
    # Step 1 makes private memory that step 2 reads; step 2 reads what step 0 wrote, too.
    assert barriers(steps_of(((), (1,)), ((2,), (5,)), ((5, 1), (3,)))) == [True, False, True]
    # It may not be put off where the next step writes what it reads.
    assert barriers(steps_of(((), (1,)), ((2,), (5,)), ((5, 1), (2,)))) == [False, True, True]


def test_what_each_thread_makes_comes_when_it_is_needed() -> None:
    first = ((2,), (5,))
    assert latest(steps_of(first, ((), (1,)), ((), (3,)), ((5,), (6,)))) == [1, 2, 0, 3]
    assert latest(steps_of(first, ((), (1,)), ((), (2,)), ((5,), (6,)))) == [1, 0, 2, 3]  # reads it
    assert latest(steps_of(first, ((5,), (1,)), ((), (3,)))) == [0, 1, 2]
    assert latest(steps_of(((), (1,)), ((1,), (2,)))) == [0, 1]  # shared: stays


def test_who_reads_what_each_thread_made_behind_a_barrier() -> None:
    steps = steps_of(((), (5,)), ((5,), (1,)), ((1,), (2,)), ((5,), (3,)), ((), (5,)), ((5,), (1,)))
    assert made_before(steps, [False, True, True, False, False, True]) == [0, 1, 2, 0, 4, 5]
