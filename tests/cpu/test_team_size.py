"""Who takes part in runs while others have the cores: the decisions, and runs of a team that is limited."""

from __future__ import annotations

import numpy as np
import pytest
from graphml_cpu.compiler import KernelRef, compile_kernels
from graphml_cpu.runtime.tape import Tape, TapeStep
from graphml_cpu.runtime.team_size import _LONGEST, _LOOK, _SHORTEST, TeamSize
from graphml_cpu.runtime.workers import Team


class Runs:
    """Runs of 100 ticks each; `lost[limit]` of them are waits while so many take part."""

    def __init__(self, n_threads: int, lost: dict[int, int], seconds: float = 0.025) -> None:
        self.team_size, self.lost, self.seconds = TeamSize(n_threads), lost, seconds
        self.taken = self.late = 0
        self.now = 1000.0

    def limits(self, count: int) -> list[int]:
        found = []
        for _ in range(count):
            found.append(self.team_size.limit)
            self.taken += 100
            self.late += self.lost.get(self.team_size.limit, 0)
            self.now += self.seconds
            self.team_size.ran(self.taken, self.late, self.now)
        return found


def test_all_take_part_while_nobody_is_late() -> None:
    assert Runs(2, {2: 25}).limits(300) == [2] * 300
    assert Runs(1, {1: 90}).limits(50) == [1] * 50


def test_one_that_holds_up_the_other_stays_away_ever_longer() -> None:
    found = Runs(2, {2: 40}).limits(600)
    away = [len(run) for run in "".join(map(str, found)).split("2") if run]
    looks = [len(run) for run in "".join(map(str, found)).split("1") if run]
    assert set(looks[:-1]) == {_LOOK}
    wanted = [min(_SHORTEST * 2**i, _LONGEST) / 0.025 for i in range(len(away))]
    np.testing.assert_allclose(away[:-1], wanted[:-1], atol=1)


def test_long_runs_are_not_left_to_one_thread() -> None:
    """A prompt in pieces of a second: a thread that was late comes back after the next piece."""
    runs = Runs(2, {2: 40}, seconds=1.0)
    assert runs.limits(_LOOK + 2) == [2] * _LOOK + [1, 2]


def test_it_comes_back_when_the_core_is_free_again() -> None:
    runs = Runs(2, {2: 40})
    runs.limits(500)
    runs.lost = {}
    back = int(_LONGEST / 0.025) + 50
    assert runs.limits(back)[-50:] == [2] * 50
    runs.lost = {2: 40}
    shortest = round(_SHORTEST / 0.025)
    assert abs(runs.limits(2 * _LOOK + shortest).count(1) - shortest) <= 1  # patience begins anew


def test_of_many_only_as_many_stay_away_as_cores_are_taken() -> None:
    runs = Runs(8, {8: 30, 7: 20, 6: 2})
    runs.limits(400)
    found = runs.limits(400)
    assert min(found) == 6
    assert np.mean(np.array(found) < 8) > 0.4


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_a_limited_team_does_all_the_work(limit: int) -> None:
    add = compile_kernels([KernelRef("sum_neighbours", "cpu_sample_kernels", "make_sum_neighbours")])
    kernel, n, team = add["sum_neighbours"], 64, Team(3)
    a, b = np.arange(n), np.zeros(n, np.int64)
    blocks = [kernel.block(x=x.ctypes.data, out=y.ctypes.data, n=n) for x, y in ((a, b), (b, a))]
    steps = [TapeStep(kernel.address, (block.ctypes.data,), parts=4) for block in blocks] * 100
    wanted = np.arange(n)
    for _ in range(5):
        team._team_size.limit = limit
        assert team.run(Tape(steps, 3))
        for _ in steps:
            wanted = wanted + wanted[::-1] + 1
        np.testing.assert_array_equal(a, wanted)
    fixed = Tape([TapeStep(kernel.address, (blocks[0].ctypes.data,))], 3)  # this one needs all threads
    assert not fixed.anyone
    assert team.run(fixed)
    team.close()
