"""Profiles: what is measured, how it is grouped, what the bytes and operations of a node are."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from graphml_cpu import program as cpu_program

import graphml
from graphml.engine import discovery
from graphml.inspect import profile_table
from graphml.inspect.layers import layer_of
from graphml.inspect.measured import Entry, Profile, Stage, overlays
from graphml.inspect.phases import (
    ATTENTION,
    EMBEDDING,
    FEED_FORWARD,
    OUTPUT,
    PHASES,
    QKV,
    Place,
    kinds,
    places,
)
from graphml.inspect.profile import profile
from graphml.inspect.profile_table import as_json, comma_separated, markdown, table
from graphml.inspect.trace import trace
from graphml.inspect.work import Work, plain_nodes, sizes_at, work
from graphml.ir.dtype import F16, F32, dtype
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.shape import fixed
from tests import golden, tiny_model
from tests.inspect import samples
from tests.test_architectures import MODELS

BACKENDS = [name for name in discovery.backend_names() if discovery.backend(name).unavailable() is None]
BANDWIDTH = 10e9


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
    assert measured.threads == (2 if measured.backend == "cpu" else 1)
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
    refuses = cpu_program.refuses

    def slow(node: Node, values: object) -> object:
        time.sleep(0.05)
        return kept(node, values)  # type: ignore[arg-type]

    monkeypatch.setattr(cpu_program, "evaluate", slow)
    monkeypatch.setattr(
        cpu_program, "refuses", lambda node: "slow" if node.name == "layers.1.attn_norm" else refuses(node)
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


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((0, 0), "wanted tokens"),
        ((-1, 4), "wanted tokens"),
        ((8, 4, 0), "0 rounds"),
        ((150, 20), "of 160 tokens"),
    ],
)
def test_numbers_that_cannot_be(tiny: Path, arguments: tuple[int, ...], says: str) -> None:
    with (
        graphml.load(tiny, "reference") as model,
        pytest.raises(graphml.UsageError, match=says),
    ):
        profile(model, *arguments)


def test_a_backend_that_tells_no_times(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphml.inspect.profile.TimedProgram", int)
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


@pytest.mark.parametrize("name", golden.some())
@pytest.mark.parametrize("backend", BACKENDS)
def test_goldens_without_a_vocabulary(name: str, backend: str, tmp_path: Path) -> None:
    with graphml.load(golden.build(golden.read(name), tmp_path / "golden.gguf"), backend) as model:
        found = profile(model, n_prompt=8, n_gen=3, rounds=1)
        picked = [node.inputs[2] for node in model.executor.build(1, 1).nodes if node.op.name == "mul_mat_id"]
        routed = any(ids.op.name != "column_numbers" for ids in picked)  # those are of heads, each its own
    text = markdown(found, BANDWIDTH, profile_table.BY)
    assert "tokenisation" not in text
    assert ("experts" in text) == routed  # a file may have experts that its architecture does not read


# Where a node belongs


def phases_by_kind(model: str) -> dict[str, str]:
    graph = samples.executor(model).compiled(1, 1).graph
    return {name: place.phase for name, place in places(graph).items()}


def test_phases_of_a_llama_layer() -> None:
    found = phases_by_kind(next(name for name in MODELS if name.startswith("llama-")))
    groups = {
        EMBEDDING: ["embedding"],
        QKV: ["layers.0.attn_norm", "layers.0.q", "layers.0.k", "layers.0.v"],
        ATTENTION: ["rope_table", "layers.0.q_rope", "layers.0.cache_write", "layers.0.attention",
                    "layers.0.attn_residual"],
        FEED_FORWARD: ["layers.0.ffn_norm", "layers.0.swiglu", "layers.0.ffn_residual"],
        OUTPUT: ["output_norm", "logits"],
    }  # fmt: skip
    wanted = {name: phase for phase, names in groups.items() for name in names}
    assert {name: found.get(name) for name in wanted if name in found} == {
        name: phase for name, phase in wanted.items() if name in found
    }
    assert len(set(wanted) & set(found)) > 10


@pytest.mark.parametrize("model", MODELS)
def test_every_architecture_has_the_phases(model: str) -> None:
    graph = samples.executor(model).compiled(1, 1).graph
    found = {place.phase for place in places(graph).values()}
    wanted = {EMBEDDING, QKV, ATTENTION, FEED_FORWARD}
    if "logits" in graph.outputs:  # embeddings may be what the last layer gives
        wanted.add(OUTPUT)
    assert wanted <= found
    for family, name in (("attention", "attention"), ("recurrent", "recurrence")):
        mixing = [node for node in graph.nodes if any(part.op.family == family for part in plain_nodes(node))]
        named = {i for i, kind in kinds(graph).items() if name in re.split(r" \(.*?\)| \+ ", kind)}
        assert named == {layer_of(node.name) for node in mixing}


KINDS = {
    "llama-plain": ["attention + feed-forward"] * 2,
    "minimax-m3-plain": [
        "attention + feed-forward", "attention (select_spans, selected_attention) + experts",
    ],
    "minimax-01-plain": ["recurrence (linear_attention) + experts", "attention + experts"],
    "rwkv6-plain": ["recurrence (ssm_conv, linear_attention) + feed-forward"] * 2,
    "mamba-plain": ["recurrence (ssm_conv, ssm_scan)", "recurrence (ssm_conv, ssm_scan) + feed-forward"],
    "t5encoder-plain": ["attention (relative_attention) + feed-forward"] * 2,
    "lfm2-plain": ["recurrence (ssm_conv) + feed-forward", *["attention (window 40) + feed-forward"] * 2],
}  # fmt: skip


@pytest.mark.parametrize("model", KINDS)
def test_kinds_of_layers(model: str) -> None:
    assert list(kinds(samples.executor(model).compiled(1, 1).graph).values()) == KINDS[model]


def test_what_runs_beside_attention_is_feed_forward_and_a_gate_is_not() -> None:
    g = Builder()
    x = g.embed(g.weight("table", F32, (9, 8)), g.tokens)
    with g.scope("layers.0"):
        h = g.rms_norm(x, g.weight("n", F32, (8,)), 1e-5, "norm")
        q, k, v, gate, up = (
            g.mul_mat(g.weight(name, F32, (8, 8)), h, name=name) for name in ("q", "k", "v", "gate", "up")
        )
        y = g.attend(g.heads(q, 2), g.heads(k, 2), g.heads(v, 2), 0, 1.0)
        y = g.mul(y, g.sigmoid(gate, name="opened"), name="gated")
        y = g.mul_mat(g.weight("o", F32, (8, 8)), y, name="out")
        x = g.add(g.add(x, y, name="sum"), g.silu(up, name="act"), name="both")
    graph = g.finish(logits=g.mul_mat(g.weight("head", F32, (9, 8)), x, name="logits"))
    found = {name.removeprefix("layers.0."): place.phase for name, place in places(graph).items()}
    assert {name for name, phase in found.items() if phase == QKV} >= {"norm", "q", "k", "v", "gate"}
    assert {found[name] for name in ("attention", "gated", "out", "opened")} == {ATTENTION}
    assert {found[name] for name in ("sum", "up", "act", "both")} == {FEED_FORWARD}
    assert found["logits"] == OUTPUT


# What a node has to do


def built(op_name: str, attributes: dict[str, object] | None = None) -> dict[str, Node]:
    executor = samples.executor(next(name for name in MODELS if name.startswith("llama-")), "cpu", "q8_0")
    return {node.name: node for node in executor.compiled(1, 1).graph.nodes}


def test_bytes_and_operations_of_products_and_lookups() -> None:
    g = Builder()
    q8 = dtype("q8_0")
    x = g.embed(g.weight("table", q8, (100, 64)), g.tokens)
    y = g.mul_mat(g.weight("w", F32, (48, 64)), x, name="y")
    sizes = sizes_at({"T": 3}, 0)
    assert work(x, sizes) == Work(3 * (64 // 32 * 34) + 3 * 4)
    assert work(y, sizes) == Work(4 * 48 * 64 + 3 * 4 * 64, 2 * 3 * 48 * 64)
    assert work(g.reshape(y, 6, 8), sizes) == Work()


def test_attention_reads_the_cells_in_use() -> None:
    g = Builder(max_tokens=512, max_cells=4096)
    q, k, v = (g.input(name, F32, (g.n_tokens, heads, 16)) for name, heads in (("q", 4), ("k", 2), ("v", 2)))

    def attention(window: int) -> Node:
        flat = g.attend(q, k, v, window, 1.0, window=window)
        return flat.inputs[0]

    def at(node: Node, count: int, past: int) -> tuple[int, int]:
        found = work(node, sizes_at({"T": count, "S": 1, "B": 128, "C": 4096}, past))
        blocks = -(-(past + count) // 32)
        rest = count * 4 * (4 * 16 + 2) + 4 * blocks
        return (found.n_bytes - rest) // (2 * 2 * 16 * 2), found.flops // (2 * 4 * 2 * 16)

    assert g.cache_dtype == F16
    assert at(attention(0), 1, 99) == (100, 100)
    assert at(attention(0), 4, 0) == (4, 1 + 2 + 3 + 4)
    assert at(attention(8), 1, 99) == (8, 8)
    assert at(attention(8), 4, 99) == (11, 4 * 8)


def test_fused_products_do_what_their_parts_do() -> None:
    nodes = built("linear")
    sizes = sizes_at({"T": 1, "O": 1}, 7)
    qkv = next(node for node in nodes.values() if node.name.endswith(".q+k+v"))
    weights = [source for source in qkv.inputs if source.op.name == "weight"]
    rows, width = sum(fixed(weight.shape[0]) for weight in weights), fixed(weights[0].shape[1])
    found = work(qkv, sizes)
    assert found.flops == 2 * rows * width
    assert rows * (width // 32 * 34) < found.n_bytes < rows * (width // 32 * 34) + 4096


def test_experts_that_are_not_used_are_not_read() -> None:
    model = next(name for name in MODELS if "expert" in name or "moe" in name)
    graph = samples.executor(model, "cpu").compiled(1, 1).graph
    experts = [node for node in graph.nodes if node.op.name.endswith("_id")]
    assert experts
    for node in experts:
        weights = [source for source in node.inputs if source.op.name == "weight" and len(source.shape) == 3]
        whole = sum(int(np.prod([int(str(d)) for d in source.shape])) * 4 for source in weights)
        assert 0 < work(node, sizes_at({"T": 1, "O": 1}, 0)).n_bytes < whole


# Tables


def stage_of(times: Sequence[Sequence[float]], entries: Sequence[Entry], waits: float = 0.0) -> Stage:
    spent = np.array(times)
    wait = np.full_like(spent, waits)
    seconds = (spent + wait).sum(axis=1)
    return Stage("generation", 1, [], entries, seconds, spent, wait, {0: "attention", 1: "attention"})


ENTRIES = [
    Entry("other", "", Place(None, "other")),
    Entry("layers.0.q", "linear", Place(0, QKV), 1, Work(8_000_000, 4_000_000)),
    Entry("layers.1.q", "linear", Place(1, QKV), 1, Work(8_000_000, 4_000_000)),
    Entry("layers.1.norm", "rms_norm", Place(1, QKV), 2, Work(100, 0)),
]


def test_rows_are_medians_of_the_sums_and_rates_follow() -> None:
    stage = stage_of([[1e-3, 1e-3, 3e-3, 2e-6], [1e-3, 2e-3, 2e-3, 2e-6], [1e-3, 9e-3, 9e-3, 2e-6]], ENTRIES)
    (linear, outside, norm) = table(stage, "op", BANDWIDTH).rows
    assert (linear["op"], linear["calls"], linear["bound by"]) == ("linear", 2, "arithmetic")
    assert linear["ms"] == pytest.approx(4.0)
    assert linear["GB/s"] == pytest.approx(16e6 / 4e-3 / 1e9)
    assert linear["of bandwidth"] == pytest.approx(0.4)
    assert linear["GFLOP/s"] == pytest.approx(8e6 / 4e-3 / 1e9)
    assert (outside["op"], outside["GB/s"]) == ("(outside)", None)
    assert (norm["bound by"], norm["GFLOP/s"]) == ("calls", None)
    layers = table(stage, "layer", BANDWIDTH).rows
    assert [(row["layer"], row["kind"]) for row in layers] == [
        (0, "attention"),
        (1, "attention"),
        (None, "other"),
    ]
    assert layers[1]["ms"] == pytest.approx(3.002)
    assert layers[1]["of median"] == pytest.approx(3.002 / ((2.0 + 3.002) / 2))


@pytest.mark.parametrize(
    ("seconds", "waits", "says"),
    [(1e-3, 0.0, "memory"), (3e-3, 0.0, "arithmetic"), (1e-3, 2e-3, "waiting"), (1e-6, 0.0, "calls")],
)
def test_what_bounds_an_op(seconds: float, waits: float, says: str) -> None:
    stage = stage_of([[0.0, seconds]], ENTRIES[:2], waits)
    assert next(row for row in table(stage, "op", BANDWIDTH).rows if row["op"])["bound by"] in (says, "")
    (row,) = [row for row in table(stage, "op", BANDWIDTH).rows if row["op"] == "linear"]
    assert row["bound by"] == says


def test_the_formats_say_the_same(measured: Profile) -> None:
    found = json.loads(json.dumps(as_json(measured, BANDWIDTH)))
    assert (found["format"], found["backend"]) == ("graphml-profile-1", measured.backend)
    rows = list(csv.DictReader(io.StringIO(comma_separated(measured, BANDWIDTH, "node"))))
    assert [row["stage"] for row in rows].count("prompt") == len(measured.stages[0].entries)
    for stage in found["stages"]:
        mine = [row for row in rows if row["stage"] == stage["name"]]
        for one, other in zip(mine, stage["node"], strict=True):
            assert (one["node"], one["op"]) == (other["node"], other["op"])
            assert float(one["ms"]) == other["ms"]
    text = markdown(measured, BANDWIDTH, ["phase", "op", "layer"])
    assert text.count("\n## ") == 2
    for line in text.splitlines():
        if line.startswith("|"):
            assert len(line) == len(line.strip())
    assert "| attention + feed-forward |" in text


def test_a_name_breaks_no_table() -> None:
    odd = replace(ENTRIES[1], name="x|\n| y \x1b[2J")
    stage = stage_of([[1e-3, 1e-3]], [ENTRIES[0], odd])
    found = Profile("m\x1b.gguf", "llama", "cpu", 1, 0, 1, {}, [replace(stage, samples=[None])])  # type: ignore[list-item]
    text = markdown(found, BANDWIDTH, ["node"])
    assert "\x1b" not in text
    assert len([line for line in text.splitlines() if line.startswith("|")]) == 4


def test_overlays_name_every_node_that_ran(measured: Profile) -> None:
    found = overlays(measured.stages[1])
    rows = {row["node"]: row for row in table(measured.stages[1], "node", BANDWIDTH).rows}
    assert set(found["time_us"]) == set(found["bytes"]) == {name for name in rows if rows[name]["calls"]}
    assert found["time_us"]["logits"] == pytest.approx(1e3 * rows["logits"]["ms"])


# Traces


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
