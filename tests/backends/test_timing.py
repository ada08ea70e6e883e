"""Programs that tell where their time goes: every backend that can, and one without the optional part."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from graphml_cpu import program as cpu_program
from graphml_cpu.device import SUPPORT
from graphml_cpu.runtime import timing

from graphml.backend import StepTime, TimedProgram
from graphml.loading import discovery
from graphml.runtime.programs.executor import Executor
from graphml.runtime.programs.load_options import LoadOptions
from graphml.runtime.programs.open_executor import open_executor
from tests.one_text import OneText
from tests.sample_models import MODELS, write_model

BACKENDS = [name for name in discovery.backend_names() if discovery.backend(name).unavailable() is None]
THREADS = {"cpu": 2, "numba": 2}  # of the others one
TOKENS = np.random.default_rng(3).integers(0, 80, 20)
MODEL = sorted(MODELS)[0]


@pytest.fixture(params=BACKENDS)
def executor(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Executor]:
    path = write_model(tmp_path / "model.gguf", *MODELS[MODEL])
    opened = open_executor(path, LoadOptions(request.param, threads=2, kv="f32", n_batch=len(TOKENS)))
    yield opened
    opened.close()


def timed(executor: Executor) -> tuple[list[Sequence[StepTime]], list[float], list[np.ndarray]]:
    """Two timed runs, between one before and one after that are not: times, seconds of each run, logits."""
    text = OneText(executor)
    program = executor.compiled(len(TOKENS), 1).program
    assert isinstance(program, TimedProgram)
    found: list[Sequence[StepTime]] = []
    seconds, logits = [], []
    for on in (False, True, True, False):
        program.time_steps((lambda dims, times: found.append(times())) if on else None)
        start = time.perf_counter()
        logits.append(text.step(TOKENS, False))
        seconds.append(time.perf_counter() - start)
        text.sequence.rewind(0)
    return found, seconds, logits


def test_times_are_those_of_the_steps(executor: Executor) -> None:
    found, seconds, logits = timed(executor)
    assert len(found) == 2  # only while it is asked for
    for other in logits[1:]:
        np.testing.assert_array_equal(other, logits[0])
    graph = executor.compiled(len(TOKENS), 1).graph
    names = {node.name for node in graph.nodes}
    for steps, wall in zip(found, seconds[1:3], strict=True):
        assert {step.node.name for step in steps} & names >= {"logits", "embedding"}
        assert {len(step.work_s) for step in steps} <= {1, THREADS.get(executor.backend.name, 1)}
        for thread in range(THREADS.get(executor.backend.name, 1)):
            begins = np.array([step.begin_s[thread] for step in steps])
            ends = begins + [step.work_s[thread] + step.wait_s[thread] for step in steps]
            assert (begins[1:] >= ends[:-1] - 1e-7).all()
            assert 0 < ends[-1] - begins[0] < wall
        assert all(seconds >= 0 for step in steps for seconds in (*step.work_s, *step.wait_s))
    assert found[0][-1].begin_s[0] < found[1][0].begin_s[0] < time.perf_counter()


@pytest.mark.parametrize("executor", ["cpu"], indirect=True)
def test_the_clock_is_that_of_perf_counter(executor: Executor) -> None:
    """Steps lie within the call that made them, and what is long by one clock is long by the other."""
    text = OneText(executor)
    program = executor.compiled(len(TOKENS), 1).program
    assert isinstance(program, TimedProgram)
    found = []
    program.time_steps(lambda dims, times: found.append((dims, times)))
    calls = []
    for _ in range(5):
        start = time.perf_counter()
        text.step(TOKENS, False)
        calls.append((start, time.perf_counter()))
        text.sequence.rewind(0)
    for (dims, times), (start, end) in zip(found, calls, strict=True):
        steps = times()
        assert dims["T"] == len(TOKENS)
        last = steps[-1]
        assert start - 1e-4 <= steps[0].begin_s[0]
        assert last.begin_s[0] + last.work_s[0] + last.wait_s[0] <= end + 1e-4


def test_readings_that_took_long_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock of 2 ticks a microsecond; while it is read the system now and then takes the processor away."""
    now, stalls = 100.0, {3: 0.005, 9: 0.004, 11: 0.007}
    reading = 0

    def counter() -> int:
        nonlocal now, reading
        reading += 1
        now += stalls.get(reading, 1e-6)
        return round((now - 90) * 2e6)

    monkeypatch.setattr("time.perf_counter", lambda: now)
    clock = timing.Clock(counter)
    for _ in range(4):
        now += 0.01
        clock.read()
    assert clock.seconds(np.array([2000]))[0] == pytest.approx(1e-3, rel=1e-3)
    assert clock.at(np.array([20_000_000]))[0] == pytest.approx(100.0, abs=5e-6)


@pytest.mark.parametrize("executor", ["cpu"], indirect=True)
def test_what_runs_in_numpy_is_timed_too(executor: Executor, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = SUPPORT.refuses
    monkeypatch.setattr(
        SUPPORT, "refuses", lambda node: "not today" if node.op.name == "rope_table" else kept(node)
    )
    found, _, _ = timed(executor)
    (table,) = [step for step in found[0] if step.node.op.name == "rope_table"]
    assert (len(table.work_s), table.wait_s) == (1, (0.0,))
    assert table.work_s[0] > 0
    assert any(len(step.work_s) == 2 for step in found[0])


def test_tapes_that_are_not_timed_stay_as_they_are(tmp_path: Path) -> None:
    """No timed tape is made before it is needed, and the untimed one has no time stamps."""
    path = write_model(tmp_path / "model.gguf", *MODELS[MODEL])
    executor = open_executor(path, LoadOptions("cpu", threads=2, n_batch=len(TOKENS)))
    timed(executor)
    program = executor.compiled(len(TOKENS), 1).program
    assert isinstance(program, cpu_program.CpuProgram)
    for tape in program.tapes:
        assert (tape.table[:, 2] == 0).all()
        assert tape.counters().size == 0
    executor.close()
