"""Several sides beside each other: whether they compute the same, and what disturbs or costs them."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.plots import lines
from benchmarks.suite_run import Judged
from benchmarks.suites import Case
from graphml.bench import job as jobs
from graphml.bench.compared_results import compare, verdict
from graphml.bench.job import Job
from graphml.bench.logit_check import JUDGE, N_DECODED, RIGHT, WRONG, LogitCheck, checked, tokens
from graphml.bench.machine_use import Energy, busy_s
from graphml.bench.measure import Measured, Round, measure
from graphml.bench.result_rows import Context, ResultRow, rows
from graphml.bench.row_formats import FORMATS
from graphml.bench.side import Usage
from graphml.bench.test_plan import SideParameters, Test
from graphml.errors import BackendError
from graphml.ir.work import Work
from tests.bench.results import ENVIRONMENT, GENERATION, FakeSide, row

LOGITS = np.random.default_rng(0).standard_normal((1 + N_DECODED, 50)).astype(np.float32)


def test_logits_are_compared_about_their_mean_and_the_worst_row_counts() -> None:
    assert checked(LOGITS, LOGITS) == LogitCheck(RIGHT, 0.0)
    near = checked(LOGITS + 7 + np.float32(1e-3) * LOGITS[::-1], LOGITS)
    assert near.verdict == RIGHT
    assert 1e-8 < near.nmse < 1e-4
    one_row = LOGITS.copy()
    one_row[3] = one_row[3][::-1]
    assert checked(one_row, LOGITS).verdict == WRONG
    assert checked(one_row, LOGITS).nmse > 1
    missing = LOGITS.copy()
    missing[2, 5] = np.nan
    assert checked(missing, LOGITS) == checked(LOGITS[:, 1:], LOGITS) == LogitCheck(WRONG)
    assert tokens(50) == tokens(50)
    assert max(tokens(50)) < 50


class Answers(FakeSide):
    """A side with logits, as a process has them."""

    asked: list[str] = []  # noqa: RUF012

    def __init__(self, setting: SideParameters, python: str = "", logits: Any = LOGITS) -> None:
        super().__init__(setting.backend, [], [10, 20])
        self.setting, self._logits = setting, logits
        self.about |= {"n_vocab": 50}

    def logits(self, ids: Sequence[int], n_prompt: int) -> Any:
        self.asked.append(self.name)
        if self._logits is None:
            raise BackendError("too large for this machine")
        return self._logits

    def __enter__(self) -> Answers:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def compared(monkeypatch: pytest.MonkeyPatch, **logits: Any) -> list[ResultRow]:
    """Rows of cpu, fast and wgpu, of which some have other logits."""
    monkeypatch.setattr(Answers, "asked", [])
    monkeypatch.setattr(
        jobs, "ProcessSide", lambda one, python="": Answers(one, logits=logits.get(one.backend, LOGITS))
    )
    sides = [("graphml", name) for name in ("fast", "cpu", "wgpu")]
    settings = [SideParameters("graphml", "m.gguf", "cpu", threads) for threads in (1, 2)]
    return list(Job(settings, [Test(4, 0)], sides, ENVIRONMENT, repetitions=1, warm=False).rows())


def test_a_wrong_side_gets_no_ratio(monkeypatch: pytest.MonkeyPatch) -> None:
    found = compared(monkeypatch, fast=-LOGITS)[:3]
    assert [(one.backends, one.correct, one.peer) for one in found] == [
        ("fast", WRONG, ""), ("cpu", RIGHT, ""), ("wgpu", RIGHT, "cpu"),
    ]  # fmt: skip
    assert found[0].ratio == 0
    assert found[0].samples_ratio == ()
    told = "".join(FORMATS["md"](found, ["ratio"]))
    assert f"{WRONG} 4.0e+00" in told
    assert f"{WRONG}: the logits are not those of the reference" in told
    assert "ratio to cpu" in told.splitlines()[0]


def test_nothing_is_measured_against_a_wrong_side(monkeypatch: pytest.MonkeyPatch) -> None:
    found = compared(monkeypatch, cpu=-LOGITS)
    assert {one.peer for one in found} == {""}
    assert {one.judge for one in found} == {"cpu"}


def test_the_reference_is_asked_once_for_all_numbers_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    compared(monkeypatch)
    assert Answers.asked.count(JUDGE) == 1
    assert Answers.asked.count("fast") == 2


def test_a_reference_that_cannot_be_run_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    found = compared(monkeypatch, reference=None)
    assert {one.correct for one in found} == {""}
    told = "".join(FORMATS["md"](found, ["ratio"]))
    assert told.count("logits: not compared with the reference's: too large for this machine") == 1


def test_a_side_without_logits_is_not_checked_and_the_others_are(monkeypatch: pytest.MonkeyPatch) -> None:
    found = compared(monkeypatch, fast=None, wgpu=-LOGITS)[:3]
    assert [one.correct for one in found] == ["", RIGHT, WRONG]
    assert "too large for this machine" in "".join(FORMATS["md"](found, ["ratio"]))


def test_the_speed_of_a_wrong_side_counts_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = compared(monkeypatch, fast=-LOGITS)[0]
    assert Judged(Case("one", "", "", Test(4, 0), ()), wrong).verdict == WRONG
    before, after = (json.loads(json.dumps(asdict(one))) for one in (replace(wrong, correct=RIGHT), wrong))
    (change,) = compare([before], [after])
    assert change.slower(0.99)
    assert verdict(change, 0.99) == WRONG
    assert verdict(compare([after], [before])[0], 0.99) == "the same"
    assert lines([wrong, replace(wrong, n_threads=2)], "n_threads") == []


def of_steps(steps: Sequence[int] = (), joules: Sequence[float] = (), **usage: Any) -> ResultRow:
    side = FakeSide("cpu", [], [1])
    found = Measured(
        side, GENERATION, (10**9,) * 3, Work(10**9, 10), {}, 5e8, tuple(steps), tuple(joules), Usage(**usage)
    )
    context = Context(
        SideParameters("graphml", "m", "cpu", 1), [{**side.about, "load_ms": 210.0}], ENVIRONMENT, ""
    )
    return rows(Round(GENERATION, (found,)), replace(context, why_no_energy="no counters"))[0]


def test_percentiles_of_decode_steps_and_what_a_side_costs() -> None:
    found = of_steps(
        [n * 10**6 for n in range(1, 102)], [200, 300, 250], peak=300 << 20, device=5 << 20, compile_s=1.5
    )
    assert (found.step_p50_ms, found.step_p90_ms, found.step_p99_ms) == (51, 91, 100)
    assert found.joules_per_token == 2.5
    told = "".join(FORMATS["md"]([found], ["ratio"]))
    assert "51.00 / 91.00 / 100.00" in told
    assert (
        "cpu: opened in 0.21 s, programs made in 1.50 s, at most 300.00 MiB of RAM, 5.00 MiB on the device, "
        "2.5 J a token\n" in told
    )
    assert of_steps().step_p99_ms == 0
    assert "energy: not known: no counters\n" in told


def test_more_than_the_bandwidth_is_marked() -> None:
    told = "".join(FORMATS["md"]([of_steps()]))
    assert " 200%? |" in told
    assert "?: more than the bandwidth that was measured cannot be" in told
    assert "?:" not in "".join(FORMATS["md"]([row(ns=[10**9] * 3)]))


def test_other_work_on_the_machine_is_a_warning() -> None:
    quiet = row(ns=[10**9] * 3)
    assert "busy" not in "".join(FORMATS["md"]([replace(quiet, load_average=0.4)]))
    told = "".join(FORMATS["md"]([replace(quiet, load_average=1.5, others_busy=1.25)]))
    assert "busy: before the first run the load average was 1.50 on 2 processors" in told
    assert "busy: other processes kept 1.2 of 2 processors busy during tg100" in told


def test_energy_is_the_sum_of_the_packages_and_wraps(tmp_path: Path) -> None:
    for name, used, most in (
        ("intel-rapl:0", 900, 1000),
        ("intel-rapl:1", 5, 1000),
        ("intel-rapl:0:0", 1, 9),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "energy_uj").write_text(f"{used}\n")
        (tmp_path / name / "max_energy_range_uj").write_text(f"{most}\n")
    energy = Energy(tmp_path)
    before = energy.read()
    assert energy.reason == ""
    (tmp_path / "intel-rapl:0" / "energy_uj").write_text("100\n")
    (tmp_path / "intel-rapl:1" / "energy_uj").write_text("55\n")
    assert energy.since(before) == pytest.approx(250e-6)
    (side,) = next(measure([FakeSide("cpu", [], [1])], [Test(1, 0)], 2, warm=False, energy=energy)).sides
    assert side.joules == (0.0, 0.0)


def test_why_energy_is_not_known_is_said(tmp_path: Path) -> None:
    assert Energy(tmp_path).reason == f"{tmp_path} has no counters of the processor"
    (tmp_path / "intel-rapl:0").mkdir()
    assert "energy_uj: No such file" in Energy(tmp_path).reason
    assert Energy(tmp_path).read() == {}


def test_busy_processors_are_read_of_all_processes(tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    stat.write_text("cpu  100 20 30 4000 50 6 7 0 0 0\ncpu0 1 1 1 1\n")
    assert busy_s(stat) == pytest.approx(163 / os.sysconf("SC_CLK_TCK"))
    assert busy_s(tmp_path / "none") == 0.0
