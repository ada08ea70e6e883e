"""Random graphs: they mean the same everywhere, a fault is found and made small, and a run goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graphml_reference.device import Decoded

from graphml.cli.fuzz import _side
from graphml.errors import UsageError
from graphml.fuzz import campaign
from graphml.fuzz.campaign import shrink
from graphml.fuzz.checks import CheckedBackend, WrongResult, check, differs, wanted
from graphml.fuzz.feed import Feed
from graphml.fuzz.graphs import DrawnGraph, random_graph
from graphml.ir import text
from graphml.ir.dtype import F32
from graphml.ir.language import Builder
from graphml.ir.ops.leaf import LEAVES
from graphml.ir.shape import bound
from graphml.ir.verify import verify
from graphml.loading import discovery
from graphml.passes.fusion import all_ops
from tests.backend_pairs import GPUS

N_GRAPHS = {"cpu": 150, "reference": 60, "numba": 6}  # GPUs' compilers take long


@pytest.fixture(autouse=True)
def as_users_run_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the optimiser of OpenCL's compiler, which tests do without."""
    monkeypatch.delenv("GRAPHML_OPENCL_OPTIONS", raising=False)


@pytest.fixture
def reference() -> CheckedBackend:
    backend = discovery.backend("reference")
    return CheckedBackend(backend, [backend.open(1)])


@pytest.fixture(params=["cpu", "reference", "numba", *GPUS])
def side(request: pytest.FixtureRequest) -> Iterator[CheckedBackend]:
    backend = discovery.backend(request.param)
    if (reason := backend.unavailable()) is not None:
        pytest.skip(reason)
    devices = [backend.open(count) for count in ([2] if backend.reads_back else [1, 3])]
    yield CheckedBackend(backend, devices)
    for device in devices:
        device.close()


def test_random_graphs_mean_the_same(side: CheckedBackend) -> None:
    for number in range(N_GRAPHS.get(side.backend.name, 8)):
        assert check(random_graph(number), [side]) is None, number


def test_compilers_are_tried_without_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPHML_REFERENCE_OPTIONS", "-cl-opt-disable")
    monkeypatch.setenv("GRAPHML_REFERENCE_DEVICE", "1")
    _side("reference", None)
    assert "GRAPHML_REFERENCE_OPTIONS" not in os.environ
    assert "GRAPHML_REFERENCE_DEVICE" in os.environ


def test_a_number_is_the_same_graph_in_every_process() -> None:
    code = "from graphml.fuzz.graphs import random_graph as r; from graphml.ir.text import write as w; "
    code += "import re; print(*(re.sub(' at .*', '', w(r(n).graph)) for n in range(12)))"
    texts = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(texts) == 1


def test_graphs_have_the_language_in_them() -> None:
    """States in steps, one value as two operands, views, formats, several outputs, texts side by side."""
    graphs = [random_graph(number) for number in range(250)]
    nodes = [node for one in graphs for node in verify(one.graph).nodes]
    ops = {node.op.name for node in nodes}
    assert {"attention", "gated_delta_net", "ssm_conv", "set_rows", "get_rows", "top_k", "permute"} <= ops
    assert len(ops) > 45
    assert any(len(set(node.inputs)) < len(node.inputs) for node in nodes)
    assert {"q8_0", "q4_0", "f16"} <= {node.dtype.name for node in nodes if node.op.name == "weight"}
    assert any(len(one.graph.outputs) > 1 for one in graphs)
    assert any(one.in_steps and one.feed.n_sequences > 1 and one.graph.leaves("state") for one in graphs)


def wrong(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference backend computes an op wrong by half a percent."""
    real = Decoded.of

    def of(self: Decoded, node: Any, values: Any) -> Any:
        value = real(self, node, values)
        return value * np.float32(1.005) if node.op.name == op else value

    monkeypatch.setattr(Decoded, "of", of)


def first_difference(side: CheckedBackend, numbers: range = range(200)) -> tuple[DrawnGraph, WrongResult]:
    for number in numbers:
        drawn = random_graph(number)
        difference = check(drawn, [side])
        if difference is not None:
            return drawn, difference
    raise AssertionError("nothing differs")


@pytest.mark.parametrize("op", ["silu", "rope", "attention"])
def test_a_planted_fault_is_found_and_made_small(
    op: str, reference: CheckedBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong(op, monkeypatch)
    drawn, difference = first_difference(reference)

    def shows(trial: DrawnGraph) -> bool:
        again = check(trial, [reference])
        return again is not None and again.kind == difference.kind

    small = shrink(drawn, shows)
    computed = [node.op.name for node in small.graph.nodes if node.op not in LEAVES]
    assert op in computed
    assert len(computed) <= (6 if op == "attention" else 3)


def test_an_error_of_a_backend_is_a_difference(
    reference: CheckedBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    def of(self: Decoded, node: Any, values: Any) -> Any:
        raise KeyError(node)

    monkeypatch.setattr(Decoded, "of", of)
    _, difference = first_difference(reference)
    assert difference.kind == ("reference", "error", "KeyError")


def test_limits_follow_the_condition_of_the_graph() -> None:
    """x - x of rounded numbers may be anything near zero; a product may not be off by a thousandth."""
    drawn = next(
        one
        for one in map(random_graph, range(100))
        if one.graph.nodes[-1].op.name == "mul_mat"
        and one.graph.nodes[-1].inputs[0].op.name != "dequantize"  # its inputs may be rounded to int8
        and not any(n.dtype.is_format for n in one.graph.nodes)
    )
    name = next(name for name, node in drawn.graph.outputs.items() if node is drawn.graph.nodes[-1])
    want = wanted(drawn)[name]
    assert not differs(want.value, want)
    assert differs(want.value * np.float32(1.01), want)
    assert differs(want.value[:0], want)
    spoilt = want.value.copy()
    spoilt.reshape(-1)[0] = np.nan
    assert "1 of" in differs(spoilt, want)


def test_a_run_writes_scripts_and_goes_on_from_its_record(
    reference: CheckedBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong("silu", monkeypatch)
    path, told = tmp_path / "record.json", list[int]()

    def tell(number: int, difference: WrongResult, script: Path | None, small: DrawnGraph) -> None:
        told.append(number)

    def run(until: int) -> campaign.CampaignRecord:
        record = campaign.CampaignRecord.read(path, ["reference"], 0)
        campaign.run(record, path, until, [reference], tmp_path / "fuzz", tell, lambda *_: None)
        return record

    first = run(30)
    assert first.found
    assert [one["number"] for one in first.found] == told
    assert run(30).n_nodes == first.n_nodes  # nothing is tried again
    held = json.loads(path.read_text())
    path.write_text(json.dumps({**held, "trying": 30}))  # the process ended in graph 30
    again = run(31)
    assert again.found[-1]["way"] == "end"
    with pytest.raises(UsageError, match="is the record of reference from graph 0; wanted cpu from 0"):
        campaign.CampaignRecord.read(path, ["cpu"], 0)
    path.write_text(json.dumps({**held, "drawn": "of other ops"}))
    with pytest.raises(UsageError, match="is the record of other graphs"):
        campaign.CampaignRecord.read(path, ["reference"], 0)
    path.write_text("{}")
    with pytest.raises(UsageError, match="wanted the record of a `graphml fuzz`"):
        campaign.CampaignRecord.read(path, ["cpu"], 0)

    script = Path(str(first.found[0]["script"]))
    monkeypatch.undo()
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "no difference"), (
        done.stderr
    )  # as nothing is planted


def test_a_graph_survives_its_text() -> None:
    for number in range(40):
        drawn = random_graph(number)
        again = text.parse(text.write(drawn.graph), all_ops())
        assert check(replace(drawn, graph=again), []) is None


def test_texts_side_by_side_read_blocks_of_their_own(side: CheckedBackend) -> None:
    """The block table has more columns in memory than the step uses."""
    feed = Feed((0, 1, 1, 0, 1, 1), (1, 2, 3, 4, 5, 6), ((2,), (0,)), 4)
    g = Builder(6, 6, feed.n_sequences, 4 * feed.n_cells, feed.block_size, "f32")
    x = g.input("x", F32, (g.n_tokens, 2, 8))
    graph = g.finish(y=g.attend(x, x, x, layer=0, scale=1.0))
    values = np.random.default_rng(0).standard_normal((6, 2, 8)).astype(np.float32)
    states = {name: np.zeros((feed.n_cells, 2, 8), np.float32) for name in graph.leaves("state")}
    assert bound(graph.leaves("input")["block_table"].shape[1]) > feed.dims["B"]
    assert check(DrawnGraph(0, graph, {"x": values, **states}, feed, True), [side]) is None
