"""Where nodes of a model go: to the next backend that can, or not if strict; rules that make no sense."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from graphml.backend import Backend
from graphml.errors import BackendError, UsageError
from graphml.loading import discovery
from graphml.runtime.programs.load_options import LoadOptions
from graphml.runtime.programs.open_executor import open_executor
from tests import golden
from tests.compiler.parted import (
    BOTH,
    LAYERS,
    LIMIT,
    built,
    evaluate,
    opened,
    refused_ops,
    without_kernel,
)
from tests.golden import nmse
from tests.one_text import OneText


def test_fused_nodes_do_not_span_backends(folder: Path) -> None:
    with opened(built("llama-dense", folder), BOTH, "reference:silu") as executor:
        counts = executor.compiled(1, 1).fusions.counts
        assert "swiglu" not in counts
        assert counts["rms_norm_mul"] == 5
    with opened(built("llama-dense", folder), BOTH) as executor:
        assert executor.compiled(1, 1).fusions.counts["swiglu"] == 2


def only(name: str, *ops: str) -> Backend:
    """A backend that can do nothing but these ops; what runs them is the reference's device."""
    return replace(
        discovery.backend("reference"),
        name=name,
        fused=frozenset(),
        refuses=lambda node: None if node.op.name in ops else f"{name} has no kernel for {node.op.name}",
    )


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"toy": only("toy", "mul_mat"), "other": only("other", "mul_mat", "softmax")}
    real = discovery.backend
    monkeypatch.setattr("graphml.loading.discovery.backend", lambda name: known.get(name) or real(name))


@pytest.mark.usefixtures("toy")
@pytest.mark.parametrize("last", ["reference", "cpu"])
def test_what_a_backend_cannot_do_falls_to_the_next_with_its_reason(last: str, folder: Path) -> None:
    one = golden.read("llama-dense")
    with opened(built("llama-dense", folder), f"toy,{last}") as executor:
        assert nmse(evaluate(executor, [one.tokens[:9], one.tokens[9:10]]), one.logits[:10]) <= LIMIT
        placement = executor.compiled(1, 1).placement
    assert placement is not None
    for placed in placement.places.values():
        if placed.op == "mul_mat":
            assert (placed.backend, placed.reason, placed.refused) == ("toy", "preferred", None)
        elif placed.op not in ("reshape", "state"):
            assert placed.backend == last
            assert placed.refused is not None
            assert "toy refuses" in placed.reason
    softmax = placement.places["layers.0.silu"]
    assert softmax.reason == "toy refuses: toy has no kernel for silu"
    assert placement.places["cache.0.k"].backend == last


@pytest.mark.usefixtures("toy")
def test_what_all_refuse_stays_with_the_first(folder: Path) -> None:
    one = golden.read("llama-moe")
    with opened(built("llama-moe", folder), "toy,other") as executor:
        assert nmse(evaluate(executor, [one.tokens[:9]]), one.logits[:9]) <= LIMIT
        placement = executor.compiled(1, 1).placement
    assert placement is not None
    assert placement.places["layers.0.softmax"].backend == "other"
    silu = placement.places["layers.0.silu"]
    assert silu.backend == "toy"
    assert silu.reason == (
        "toy refuses: toy has no kernel for silu; other refuses: other has no kernel for silu; runs in NumPy"
    )


@pytest.mark.usefixtures("toy")
@pytest.mark.parametrize("backend", ["toy", "toy,reference", "toy,other"])
def test_strict_refuses_fallbacks_with_nodes_and_reasons(backend: str, folder: Path) -> None:
    path = built("llama-dense", folder)
    with (
        opened(path, backend, strict=True) as executor,
        pytest.raises(BackendError, match=r"strict: \d+ nodes .*rope_table: .*toy has no kernel"),
    ):
        executor.compiled(1, 1)


@pytest.mark.parametrize(
    ("backend", "place", "places"),
    [
        ("cpu", "", ("cpu",) * 99),
        ("reference", "", ("reference",) * 99),
        (BOTH, LAYERS, ("cpu", "reference", *("cpu",) * 97)),
    ],
)
def test_strict_lets_pass_what_needs_no_fallback(
    backend: str, place: str, places: Sequence[str], folder: Path
) -> None:
    """And nothing else: of models with ops that the CPU has no kernel for, it names those.

    That the CPU falls back for no other golden, test_goldens.py says.
    """
    for name in golden.some(30):
        with opened(built(name, folder), backend, place, strict=True) as executor:
            lacking = without_kernel(executor.build(1, 1), places)
            if lacking:
                with pytest.raises(BackendError, match=r"strict: \d+ nodes ") as caught:
                    executor.compiled(1, 1)
                assert refused_ops(str(caught.value)) == lacking
                continue
            values = OneText(executor).step([1])
            assert values.shape == (1, golden.read(name).logits.shape[1])


def test_strict_refuses_what_the_cpu_backend_runs_in_numpy(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = discovery.backend("cpu")
    limited = replace(real, refuses=lambda node: "no room" if node.op.name == "rope" else real.refuses(node))
    monkeypatch.setattr("graphml.loading.discovery.backend", lambda name: limited)
    with (
        opened(built("llama-dense", folder), "cpu", strict=True) as executor,
        pytest.raises(BackendError, match=r"strict: 2 nodes .*layers\.0\.q_rope: no room"),
    ):
        executor.compiled(1, 1)


@pytest.mark.parametrize(
    ("backend", "place", "wanted"),
    [
        (BOTH, "reference", r"wanted BACKEND:WHAT, such as cpu:layers\.0-14; got 'reference'"),
        (BOTH, "gpu:attention", "'gpu:attention': wanted one of the backends cpu, reference"),
        (BOTH, "reference:atention", "names no node of the graph. Did you mean 'attention'"),
        (BOTH, "reference:layers.7-9", "'reference:layers.7-9' names no node"),
        ("cpu", "reference:attention", "wanted one of the backends cpu"),
    ],
)
def test_rules_that_make_no_sense_are_told(backend: str, place: str, wanted: str, folder: Path) -> None:
    with opened(built("llama-dense", folder), backend, place) as executor, pytest.raises(
        UsageError, match=wanted
    ):  # fmt: skip
        executor.compiled(1, 1)


def test_lists_of_backends_that_make_no_sense_are_told(folder: Path) -> None:
    path = built("llama-dense", folder)
    with pytest.raises(UsageError, match="'cpu' stands twice in 'cpu,cpu'"):
        open_executor(path, LoadOptions("cpu,cpu"))
    with pytest.raises(BackendError, match="no backend 'gpu' is installed"):
        open_executor(path, LoadOptions("cpu,gpu"))
