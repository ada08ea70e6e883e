"""A mixed run of an engine: what is recorded, its tables, its trace and its picture, on a small model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

import graphml
from graphml.inspect.profile import step_plot, step_table
from graphml.inspect.profile.mixed_run import BETWEEN, SAMPLING, WAITS, MixedRun, mixed_run
from graphml.inspect.profile.trace import step_trace
from graphml.runtime.loop.timeline import SequenceRows, TimelineStep, WaitingSequence
from tests import tiny_model
from tests.stories import STORIES

N_GEN = 300


@pytest.fixture(scope="module")
def run() -> Iterator[MixedRun]:
    with graphml.load(STORIES, "cpu", threads=2, n_batch=64, kv="f32") as model:
        yield mixed_run(
            model, 3, n_prompt=100, n_gen=N_GEN
        )  # tokens enough that a slow machine answers in time


def test_two_equal_prompts_arrive_beside_sequences_that_generate(run: MixedRun) -> None:
    assert [one.n_prompt for one in run.requests] == [16, 16, 16, 100, 100]
    assert [one.n_cached for one in run.requests] == [0, 0, 0, 0, 96]
    assert [len(one.token_s) for one in run.requests] == [N_GEN] * 5  # an end token ends none
    assert sum(step.n_rows for step in run.steps) == 3 * 16 + 100 + 4 + 5 * (N_GEN - 1)
    first, long = run.requests[0], run.requests[3]
    assert first.token_s[N_GEN // 4 - 2] < long.arrived_s < long.token_s[0] == long.arrived_s + long.first_s
    assert len(long.gaps_s) == N_GEN - 1
    mixed = [step for step in run.steps if step_table.kind_of(step) == "tokens and prompts"]
    assert {rows.sequence for step in mixed for rows in step.rows} >= {
        one.sequence for one in run.requests[:4]
    }


def test_the_tables(run: MixedRun) -> None:
    text = step_table.markdown(run)
    assert text.startswith(
        "stories260K.bin: llama on cpu; 3 sequences generate 300 tokens each; two requests "
    )
    kinds, ops, main, requests = text.split("\n\n")[1:]
    assert "| mul_mat_glu" in ops
    assert main.startswith("Products and attention: ")
    counts = {line.split("|")[1].strip(): int(line.split("|")[2]) for line in kinds.splitlines()[2:]}
    assert sum(counts.values()) == len(run.steps)
    assert {"tokens", "tokens and prompts", "prompts"} == set(counts)
    assert len({len(line) for line in requests.splitlines()}) == 1
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in requests.splitlines()[2:]]
    assert [(row[1], row[2]) for row in cells[-2:]] == [("100", "0"), ("100", "96")]
    assert "step" in cells[-1][-1]  # why it waited
    found = json.loads(json.dumps(step_table.as_json(run)))
    assert found["steps"][0]["begin_s"] == 0.0
    assert [len(one["token_s"]) for one in found["requests"]] == [N_GEN] * 5


def test_a_step_of_tokens_by_op(run: MixedRun) -> None:
    shares = {one.op: one for one in run.shares}
    assert {WAITS, SAMPLING, BETWEEN, "mul_mat_glu", "attention", "rope"} <= set(shares)
    assert all(one.seconds >= 0 for one in run.shares)
    assert 0.5 < sum(one.share for one in run.shares) < 1.5  # medians of steps of several lengths
    main = {one.op for one in run.shares if one.main}
    assert {"mul_mat_glu", "attention"} <= main
    assert main <= {op for op in shares if op.startswith(("mul_mat", "linear", "attention"))}
    assert not {"rope", WAITS, SAMPLING} & main


def test_the_trace_of_a_run_has_every_row(run: MixedRun) -> None:
    events = json.loads(json.dumps(step_trace(run.steps, run.model, run.backend)))["traceEvents"]
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert names == {0: "steps", **{i + 1: f"sequence {one.sequence}" for i, one in enumerate(run.requests)}}
    spans = [event for event in events if event["ph"] == "X"]
    assert len([event for event in spans if event["cat"] == "step"]) == len(run.steps)
    for track in names:
        here = [event for event in spans if event["tid"] == track and event["cat"] != "computed"]
        assert all(one["ts"] + one["dur"] <= other["ts"] + 1e-3 for one, other in pairwise(here))
        rows = sum(event["args"].get("rows", 0) for event in here)
        one = run.requests[track - 1]
        if track:
            assert rows == one.n_prompt - one.n_cached + len(one.token_s) - 1
        else:
            assert rows == sum(step.n_rows for step in run.steps)
    assert all(event["dur"] > 0 for event in spans)
    assert [event["name"] for event in events if event["ph"] == "i"] == ["found 96 ids"]


def test_the_trace_of_made_steps() -> None:
    """Waits for one reason are one event; marks where blocks were lost; counters."""
    steps = [
        TimelineStep(
            i,
            2.0 * i + 5,
            2.0 * i + 6,
            0.5,
            32,
            (SequenceRows(7, 0, 8, False, False),),
            waiting,
            lost,
            1,
            2,
            3,
        )
        for i, (waiting, lost) in enumerate(
            [
                ((WaitingSequence(8, "slot"),), ()),
                ((WaitingSequence(8, "slot"),), ()),
                ((WaitingSequence(8, "blocks"),), (8,)),
                ((), ()),
            ]
        )
    ]
    events = step_trace(steps, "m", "cpu")["traceEvents"]
    waits = [(event["name"], event["ts"], event["dur"]) for event in events if event.get("cat") == "wait"]
    assert waits == [("waits: slot", 0.0, 3e6), ("waits: blocks", 4e6, 1e6)]
    assert [(e["name"], e["tid"], e["ts"]) for e in events if e["ph"] == "i"] == [("preempted", 2, 4e6)]
    counted = [event["args"] for event in events if event["ph"] == "C" and event["name"] == "rows"]
    assert counted == [{"tokens": 0, "prompts": 8}] * 4
    computed = [event["dur"] for event in events if event.get("cat") == "computed"]
    assert computed == [5e5] * 4
    assert step_trace([], "m", "cpu")["traceEvents"]


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_the_picture(run: MixedRun, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / "folder" / f"steps{suffix}"
    step_plot.ready(path)
    step_plot.draw(path, run)
    assert path.stat().st_size > 5000
    with pytest.raises(graphml.UsageError, match=r"plot: wanted a file \*.png or \*.svg; got 'steps.gif'"):
        step_plot.ready(tmp_path / "steps.gif")


def test_numbers_that_no_run_can_have(tmp_path: Path) -> None:
    with graphml.load(tiny_model.write(tmp_path / "tiny.gguf"), "cpu") as model:
        for sequences, prompt, tokens in ((0, 8, 8), (2, 0, 8), (2, 8, 0)):
            with pytest.raises(graphml.UsageError, match="wanted sequences, a prompt and tokens after it"):
                mixed_run(model, sequences, prompt, tokens)
        with pytest.raises(graphml.UsageError, match=r"^n_prompt: .* the context of tiny\.gguf has "):
            mixed_run(model, 2, model.n_ctx, 8)
