"""Differences of arrays, runs with every value kept, and their comparison."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from graphml.compiler.options import CompileOptions
from graphml.errors import UsageError
from graphml.inspect.compare.compare import as_markdown, compare, with_errors
from graphml.inspect.compare.forced import extract, forced, is_state, unit, unquantized
from graphml.inspect.compare.observe import observe, restore, save
from graphml.inspect.compare.tolerances import INT8_TOLERANCE, TOLERANCES, difference, tolerance
from graphml.inspect.dumps.without_weights import describe_model
from graphml.ir.verify import verify
from graphml.runtime.programs.load_options import LoadOptions
from graphml.runtime.programs.open_executor import open_executor
from tests import golden
from tests.stories import STORIES

IDS = [1, 403, 407, 261, 378]
F32 = np.float32


def test_equal_arrays() -> None:
    one = difference(np.ones(3, F32), np.ones(3, F32))
    assert (one.nmse, one.max_abs, one.max_ulp, one.median_ulp) == (0, 0, 0, 0)
    assert difference(np.zeros(0, F32), np.zeros(0, F32)).nmse == 0


def test_error_and_ulp() -> None:
    a, b = np.array([1, 2, 3, 4], F32), np.array([1, 2, 3, 5], F32)
    one = difference(a, b)
    assert one.nmse == pytest.approx(1 / 39)
    assert one.max_abs == 1
    next_to = np.nextafter(b, F32(10), dtype=F32)
    assert (difference(next_to, b).max_ulp, difference(next_to, b).median_ulp) == (1, 1)
    around_zero = np.array([-1e-45], F32), np.array([1e-45], F32)
    assert difference(*around_zero).max_ulp == 2
    assert difference(np.array([-0.0], F32), np.array([0.0], F32)).max_ulp == 0
    assert difference(np.array([1], np.float16), np.array([1.0009765625], np.float16)).max_ulp == 1
    assert difference(np.array([7, 9]), np.array([7, 4])).max_ulp == 5


def test_nan_and_infinity() -> None:
    nan, inf = float("nan"), float("inf")
    b = np.array([1, nan, inf, 4], F32)
    assert difference(b, b).nmse == 0
    assert difference(b, b).nan == (1, 1)
    one = difference(np.array([1, nan, -inf, 4], F32), b)
    assert one.nmse == inf
    assert one.inf == (1, 1)
    lost = difference(np.array([nan, nan, inf, 4], F32), b)
    assert (lost.nmse, lost.nan) == (inf, (2, 1))
    assert lost.as_json()["nmse"] == "inf"
    assert difference(np.ones(2, F32), np.zeros(2, F32)).nmse == inf


def test_arrays_that_do_not_match() -> None:
    with pytest.raises(UsageError, match=r"float32\[2\] and float32\[3\]"):
        difference(np.ones(2, F32), np.ones(3, F32))


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_an_observed_run_gives_the_logits_of_a_session(backend: str) -> None:
    executor = open_executor(STORIES, LoadOptions(backend, 2, n_batch=32))
    run = observe(executor, IDS)
    assert [step.name for step in run.steps] == ["prefill", "decode"]
    assert all(one.nmse < 1e-12 for step in run.steps for one in (step.unwatched or {}).values())
    assert all({"logits", "cache.0.k"} <= set(step.unwatched or {}) for step in run.steps)
    alone = observe(executor, IDS[:1])
    assert [step.name for step in alone.steps] == ["decode"]
    with pytest.raises(UsageError, match="wanted 1 to 32 tokens; got 33"):
        observe(executor, [1] * 33)
    executor.close()


def test_rows_are_what_both_runs_show_in_the_order_of_the_graph(tmp_path: Path) -> None:
    executor = open_executor(STORIES, LoadOptions("cpu", 2, n_batch=32))
    a, b = observe(executor, IDS), observe(executor, IDS, CompileOptions(fuse="none"))
    rows = compare(a, b)
    names = [row.node for row in rows if row.step == "prefill"]
    position = {node.name: i for i, node in enumerate(a.steps[0].graph.nodes)}
    assert sorted(names, key=position.__getitem__) == names
    assert {"layers.0.swiglu", "layers.4.attention", "logits"} <= set(names)
    assert "layers.0.silu" not in names
    assert max(row.difference.nmse for row in rows) < 1e-8
    table = as_markdown(rows)
    assert table.count("\n| layers.0.swiglu ") == 2
    assert "mul_mat_glu / mul" in table
    document = with_errors(describe_model(executor, 1), rows)
    assert set(document["overlays"]["nmse"]) == {row.node for row in rows if row.step == "decode"}
    save(a, tmp_path / "run.npz")
    again = restore(tmp_path / "run.npz", executor.weights)
    assert all(row.difference.max_abs == 0 for row in compare(a, again))
    assert len(compare(a, again)) >= len(rows)
    assert again.steps[1].applied == a.steps[1].applied
    executor.close()


def test_forced_and_extracted_graphs_are_well_formed(tmp_path: Path) -> None:
    one = golden.read("llama-moe")
    tensors = {name: golden.weights(name, sizes, one.seed) for name, sizes in one.tensors.items()}
    path = golden.write_gguf(tmp_path / "m.gguf", one.architecture, one.metadata, tensors, "q4_1")
    executor = open_executor(path, LoadOptions("cpu", 2, n_batch=32))
    (step,) = observe(executor, [3]).steps
    executor.close()
    given = {name for name in step.values if not is_state(step.graph.node(name))}
    verify(forced(step.graph, given))
    verify(unquantized(step.graph))
    assert not any(node.dtype.name.startswith("q8") for node in unquantized(step.graph).nodes)
    for name in step.values:
        small = verify(extract(step.graph, name, given))
        assert set(small.outputs) == {"result"}
        assert unit(step.graph, name, given)[-1].name == name


def test_tolerances_are_of_the_most_tolerant_node() -> None:
    executor = open_executor(STORIES, LoadOptions("reference", n_batch=32))
    graph = observe(executor, IDS[:1]).steps[0].graph
    executor.close()
    norm, attention = graph.node("layers.0.attn_norm"), graph.node("layers.0.attention")
    assert tolerance([]) == 0
    assert tolerance([norm]) == TOLERANCES["fused"]
    assert tolerance([norm, attention]) == TOLERANCES["attention"]
    assert tolerance([graph.node("layers.0.reshape")]) == 0
    assert max(TOLERANCES.values()) < INT8_TOLERANCE
