"""Profiles: what is measured, and how tables and traces tell it."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from graphml_cpu import program as cpu_program
from graphml_cpu.device import SUPPORT

import graphml
from graphml.inspect.profile import profile_table
from graphml.inspect.profile.measured import Profile, overlays
from graphml.inspect.profile.phases import (
    PHASES,
)
from graphml.inspect.profile.profile import profile
from graphml.inspect.profile.profile_table import WAITS, as_json, comma_separated, markdown, table
from graphml.inspect.profile.trace import trace
from graphml.ir.node import Node
from tests import golden, tiny_model
from tests.backend_pairs import BACKENDS, PROCESSORS, in_turn
from tests.looped import looped

BANDWIDTH = 10e9
PROFILED = list(dict.fromkeys(in_turn(golden.FEW) + in_turn(golden.some(), PROCESSORS)))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model.write(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@pytest.fixture(scope="module", params=BACKENDS)
def measured(request: pytest.FixtureRequest, tiny: Path) -> Profile:
    with graphml.load(tiny, request.param, threads=2) as model:
        return profile(model, n_prompt=24, n_gen=6, rounds=2)


def test_a_profile_has_all_of_a_samples_time(measured: Profile) -> None:
    assert [(stage.name, stage.tokens, len(stage.samples)) for stage in measured.stages] == [
        ("prompt", 24, 2),
        ("generation", 1, 6),
    ]
    assert measured.threads == (2 if measured.backend in ("cpu", "numba") else 1)
    for stage in measured.stages:
        spent = stage.work.sum(axis=1) + stage.wait.sum(axis=1)
        np.testing.assert_allclose(spent, stage.seconds, rtol=1e-9)
        in_graph = [i for i, entry in enumerate(stage.entries) if entry.op]
        assert (stage.work[:, in_graph] >= 0).all()
        assert 0 < stage.work[:, in_graph].sum() < stage.seconds.sum()
        names = {entry.name for entry in stage.entries}
        assert {"embedding", "layers.1.attention", "logits", "other"} <= names
        assert {"layers.0.q", "layers.0.q+k+v"} & names


def test_barriers_are_those_of_the_tape(tiny: Path) -> None:
    with graphml.load(tiny, "cpu", threads=2) as model:
        (stage,) = profile(model, 0, 2).stages
        program = model.executor.compiled(1, 1).program
        assert isinstance(program, cpu_program.CpuProgram)
        steps = [step for tape in program.tapes for step in tape.steps]
    assert stage.barriers == sum(step.barrier for step in steps) > 2
    inside = sum(step.barrier for step in steps if step.name.startswith("layers."))
    assert stage.layer_barriers == inside / 2
    assert f"at {stage.barriers} barriers, " in profile_table.summary(stage)


def test_encoding_is_told_of_devices_that_work_alone(measured: Profile) -> None:
    prompt, generation = measured.stages
    assert prompt.encode_s is None
    told = profile_table.summary(generation)
    if measured.backend in ("wgpu", "opencl"):
        assert generation.encode_s is not None
        assert 0 < generation.encode_s < generation.seconds.sum()
        assert f"encoded in {1e3 * generation.encode_s:.3f} ms" in told
    else:
        assert generation.encode_s is None
        assert "encoded" not in told


def test_phases_of_both_stages(measured: Profile) -> None:
    prompt, generation = (
        {row["phase"]: row for row in table(stage, "phase", BANDWIDTH).rows} for stage in measured.stages
    )
    inside = {"embedding", "QKV", "attention", "feed-forward", "output projection", "other"}
    waits = [rows.pop(WAITS, None) for rows in (prompt, generation)]
    assert [row is not None for row in waits] == [bool(stage.wait.any()) for stage in measured.stages]
    assert set(prompt) == inside | {"tokenisation"}
    assert set(generation) == inside | {"sampling", "detokenisation"}
    assert set(prompt) | set(generation) == set(PHASES)
    for rows in (prompt, generation):
        assert list(rows) == [phase for phase in PHASES if phase in rows]
        assert all(row["ms"] > 0 for row in rows.values())


def test_a_slow_node_shows(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tables name what really takes the time: a node that is made slow comes first everywhere."""
    import time

    kept = cpu_program.evaluate
    refuses = SUPPORT.refuses

    def slow(node: Node, values: object) -> object:
        time.sleep(0.05)
        return kept(node, values)  # type: ignore[arg-type]

    monkeypatch.setattr(cpu_program, "evaluate", slow)
    monkeypatch.setattr(
        SUPPORT, "refuses", lambda node: "slow" if node.name == "layers.1.attn_norm" else refuses(node)
    )
    with graphml.load(tiny, "cpu", threads=2) as model:
        (stage,) = profile(model, n_prompt=0, n_gen=4).stages
    nodes = {row["node"]: row for row in table(stage, "node", BANDWIDTH).rows}
    assert max(nodes, key=lambda name: nodes[name]["ms"]) == "layers.1.attn_norm"
    assert nodes["layers.1.attn_norm"]["ms"] >= 50
    layers = [row for row in table(stage, "layer", BANDWIDTH).rows if row["layer"] is not None]
    assert max(layers, key=lambda row: row["ms"])["layer"] == 1
    assert max(row["share"] for row in table(stage, "phase", BANDWIDTH).rows) > 0.5
    assert table(stage, "op", BANDWIDTH).rows[0]["op"] == nodes["layers.1.attn_norm"]["op"]


def test_timing_ends_with_the_profile(tiny: Path) -> None:
    with graphml.load(tiny, "cpu", threads=2) as model:
        first = model.session().eval([1, 2, 3])
        profile(model, n_prompt=5, n_gen=2, rounds=1)
        program = model.executor.compiled(1, 1).program
        assert isinstance(program, cpu_program.CpuProgram)
        assert program._timer is None
        np.testing.assert_array_equal(model.session().eval([1, 2, 3]), first)


@looped(
    ("arguments", "says"),
    [
        ((0, 0), "wanted tokens"),
        ((-1, 4), "wanted tokens"),
        ((8, 4, 0), "0 rounds"),
        ((150, 20), "^n_prompt: .* has a context of 160"),
    ],
)
def test_numbers_that_cannot_be(tiny: Path, arguments: tuple[int, ...], says: str) -> None:
    with (
        graphml.load(tiny, "reference") as model,
        pytest.raises(graphml.UsageError, match=says),
    ):
        profile(model, *arguments)


def test_a_backend_that_tells_no_times(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphml.inspect.profile.profile.TimedProgram", int)
    with (
        graphml.load(tiny, "cpu", threads=1) as model,
        pytest.raises(graphml.BackendError, match="'cpu': its programs do not tell"),
    ):
        profile(model, 4, 4)


def test_a_prompt_longer_than_a_batch(tiny: Path) -> None:
    with graphml.load(tiny, "cpu", threads=1, n_batch=16) as model:
        (stage,) = profile(model, n_prompt=33, n_gen=0, rounds=1).stages
    assert [(run.dims["T"], run.past) for run in stage.samples[0].runs] == [(16, 0), (16, 16), (1, 32)]
    (logits,) = [entry for entry in stage.entries if entry.name == "logits"]
    assert logits.calls == 3


@pytest.mark.parametrize(("name", "backend"), PROFILED)
def test_goldens_without_a_vocabulary(name: str, backend: str, tmp_path: Path) -> None:
    with graphml.load(golden.build(golden.read(name), tmp_path / "golden.gguf"), backend) as model:
        found = profile(model, n_prompt=8, n_gen=3, rounds=1)
        picked = [node.inputs[2] for node in model.executor.build(1, 1).nodes if node.op.name == "mul_mat_id"]
        routed = any(ids.op.name != "column_numbers" for ids in picked)  # those are of heads, each its own
    text = markdown(found, BANDWIDTH, profile_table.BY)
    assert "tokenisation" not in text
    assert ("experts" in text) == routed  # a file may have experts that its architecture does not read


def test_the_formats_say_the_same(measured: Profile) -> None:
    found = json.loads(json.dumps(as_json(measured, BANDWIDTH)))
    assert (found["format"], found["backend"]) == ("graphml-profile-1", measured.backend)
    rows = list(csv.DictReader(io.StringIO(comma_separated(measured, BANDWIDTH, "node"))))
    stage = measured.stages[0]
    assert [row["stage"] for row in rows].count("prompt") == len(stage.entries) + bool(stage.wait.any())
    for shown in found["stages"]:
        mine = [row for row in rows if row["stage"] == shown["name"]]
        for one, other in zip(mine, shown["node"], strict=True):
            assert (one["node"], one["op"]) == (other["node"], other["op"] or "")
            assert float(one["ms"]) == other["ms"]
    text = markdown(measured, BANDWIDTH, ["phase", "op", "layer"])
    assert text.count("\n## ") == 2
    for line in text.splitlines():
        if line.startswith("|"):
            assert len(line) == len(line.strip())
    assert "| attention + feed-forward |" in text


def test_overlays_name_every_node_that_ran(measured: Profile) -> None:
    found = overlays(measured.stages[1])
    rows = {row["node"]: row for row in table(measured.stages[1], "node", BANDWIDTH).rows}
    assert set(found["time_us"]) == set(found["bytes"]) == {name for name in rows if rows[name]["calls"]}
    assert found["time_us"]["logits"] == pytest.approx(1e3 * rows["logits"]["ms"])


def test_a_trace_is_one_that_perfetto_opens(measured: Profile) -> None:
    """The fields of Chrome's trace event format; the events of a track follow each other or are nested."""
    found = json.loads(json.dumps(trace(measured), allow_nan=False))
    assert set(found) == {"traceEvents", "displayTimeUnit", "otherData"}
    assert found["displayTimeUnit"] in ("ms", "ns")
    names = {}
    ends: dict[int, float] = {}
    for event in found["traceEvents"]:
        assert event["ph"] in ("M", "X")
        assert isinstance(event["name"], str)
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        assert isinstance(event["args"], dict)
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name")
            names[event["name"], event["tid"]] = event["args"]["name"]
            continue
        assert ("thread_name", event["tid"]) in names
        assert isinstance(event["cat"], str)
        assert event["dur"] >= 0
        assert event["ts"] >= ends.get(event["tid"], 0.0) - 1e-6
        ends[event["tid"]] = event["ts"] + event["dur"]
    assert len([1 for kind, _ in names if kind == "thread_name"]) == measured.threads + 1
    events = [event for event in found["traceEvents"] if event["ph"] == "X"]
    tokens = [event for event in events if event["tid"] == measured.threads]
    assert [event["name"] for event in tokens] == [
        "prompt of 24 tokens",
        *(f"token {i}" for i in range(2, 6)),
    ]
    for thread in range(measured.threads):
        mine = [event for event in events if event["tid"] == thread and event["name"] == "logits"]
        assert len(mine) >= 5
    token = tokens[-1]
    inside = [e for e in events if e["tid"] == 0 and token["ts"] <= e["ts"] <= token["ts"] + token["dur"]]
    assert {event["name"] for event in inside} >= {"sampling", "embedding", "logits"}
    assert sum(event["dur"] for event in inside) <= token["dur"] + 1


def test_a_trace_keeps_its_order_when_clocks_disagree(measured: Profile) -> None:
    """A thread's clock a little off must not make events overlap."""
    stage = measured.stages[1]
    run = stage.samples[-1].runs[0]
    late = [replace(step, begin_s=tuple(b - 5e-5 for b in step.begin_s)) for step in run.steps[1:]]
    run.steps = [run.steps[0], *late]
    test_a_trace_is_one_that_perfetto_opens(measured)
