"""Compile options: fusions that are off are off, kept values are what they are, wrong names are told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import graphml
from graphml.compiler.options import CompileOptions
from graphml.errors import UsageError
from graphml.ir.dtype import F32
from graphml.ir.graph import Graph
from graphml.ir.language import Builder
from graphml.loading import discovery
from graphml.passes.fusion import fusions
from graphml.runtime.programs.executor import Executor
from graphml.runtime.programs.load_options import LoadOptions
from graphml.runtime.programs.open_executor import open_executor
from tests.backend_pairs import in_turn
from tests.one_text import OneText
from tests.runtime.test_executor import sample, write

BACKENDS = [name for name in discovery.backend_names() if discovery.backend(name).unavailable() is None]
IDS = np.random.default_rng(1).integers(0, 80, 6)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("options") / "tiny.gguf", sample())


@pytest.fixture(params=BACKENDS, scope="module")
def executor(request: pytest.FixtureRequest, path: Path) -> Iterator[Executor]:
    made = open_executor(path, LoadOptions(request.param, threads=2, kv="f32", n_batch=8))
    yield made
    made.close()


def fused_ops(graph: Graph) -> set[str]:
    return {node.op.name for node in graph.nodes if node.op.decompose is not None}


def values(executor: Executor, options: CompileOptions, ids: np.ndarray = IDS) -> dict[str, np.ndarray]:
    found = OneText(executor, 32, options).outputs(ids)
    return {name: array.copy() for name, array in found.items()}


def nmse(got: np.ndarray, want: np.ndarray) -> float:
    assert got.shape == want.shape
    return float(((got - want) ** 2).sum() / (want**2).sum())


@pytest.mark.parametrize(
    ("name", "executor"),
    in_turn(sorted({fusion.replace.name for fusion in fusions().values()})),
    indirect=["executor"],
)
def test_a_fused_op_that_is_off_is_nowhere(name: str, executor: Executor) -> None:
    compiled = executor.compiled(8, 8, CompileOptions(fuse=f"-{name}"))
    assert name not in fused_ops(compiled.graph)
    assert not {f.name for f in fusions().values() if f.replace.name == name} & set(compiled.fusions.counts)
    if name not in fused_ops(executor.compiled(8, 8).graph):
        return  # the same program
    assert (
        nmse(values(executor, compiled.options)["logits"], values(executor, CompileOptions())["logits"])
        < 1e-9
    )


def test_without_fusions_it_means_the_same(executor: Executor) -> None:
    off = CompileOptions(fuse="none")
    assert not fused_ops(executor.compiled(8, 8, off).graph)
    several = (
        set() if executor.backend.name == "numba" else {"linears", "mul_mat_glu"}
    )  # it has few fused ops
    assert fused_ops(executor.compiled(8, 8).graph) >= {"linear", "rms_norm_mul", *several}
    for count in (1, 6):
        fused, plain = (values(executor, options, IDS[:count]) for options in (CompileOptions(), off))
        assert nmse(fused["logits"], plain["logits"]) < 1e-9


def test_kept_values_come_out_and_no_fusion_swallows_them(executor: Executor) -> None:
    options = CompileOptions(
        keep=("layers.*.gate", "layers.0.silu", "layers.1.reshape*", "layers.0.attn_norm")
    )
    log = executor.compiled(8, 8, options).fusions
    assert [(miss.node, miss.at) for miss in log.refused if miss.fusion == "swiglu"] == [
        ("layers.0.swiglu", "layers.0.silu")
    ]
    for count in (1, 6):
        got = values(executor, options, IDS[:count])
        every = values(executor, CompileOptions("none", ("*",)), IDS[:count])
        assert {"value:layers.0.gate", "value:layers.1.gate", "value:layers.0.silu"} <= set(got)
        assert set(got) < set(every)
        for name, value in got.items():
            assert nmse(value, every[name]) < 1e-9, name


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        (CompileOptions(keep=("layers.0.swiglo",)), "'layers.0.swiglo'. Did you mean 'layers.0.swiglu'"),
        (CompileOptions(keep=("nothing.*",)), "no value of the graph is called"),
        (CompileOptions(keep=("layers.0.attn_norm.q8_1",)), "If a pass makes it of 'layers.0.attn_norm'"),
        (CompileOptions(keep=("layers.0.q+k",)), "keep 'layers.0.q' or 'layers.0.k'"),
        (CompileOptions(fuse="-swiglo"), "^fuse: no fusion is called 'swiglo'. Did you mean 'swiglu'"),
    ],
)
def test_wrong_names_are_told(options: CompileOptions, wanted: str, executor: Executor) -> None:
    with pytest.raises(UsageError, match=wanted):
        executor.compiled(1, 1, options)


def test_the_environment_decides_where_nothing_is_given(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPHML_FUSE", "none")
    assert not graphml.compile(path, "reference").fusions.applied
    assert graphml.compile(path, "reference", fuse="all").fusions.applied
    monkeypatch.setenv("GRAPHML_FUSE", "nothing")
    with pytest.raises(UsageError, match=r"^GRAPHML_FUSE: wanted all, none"):
        graphml.load(path, "reference")


def test_compile_takes_a_path_a_model_and_a_graph(path: Path) -> None:
    from_path = graphml.compile(path, "cpu", threads=2, fuse="-swiglu", n_tokens=4, n_outputs=4)
    with graphml.load(path, "cpu", 2, fuse="-swiglu") as model:
        from_model = graphml.compile(model, fuse="-swiglu", n_tokens=4, n_outputs=4)
        assert from_model.fusions.counts == from_path.fusions.counts
        assert "swiglu" not in model.executor.compiled(1, 1).fusions.counts
        assert graphml.compile(model, fuse="all").fusions.counts["swiglu"] == 2
        with pytest.raises(UsageError, match="open on 'cpu'; got 'reference'"):
            graphml.compile(model, "reference")
    g = Builder(max_tokens=3)
    w = g.weight("w", F32, (4,))
    graph = g.finish(y=g.rms_norm(g.input("x", F32, (g.n_tokens, 4)), w, 1e-5))
    with pytest.raises(UsageError, match="weights: the graph wants 'w'"):
        graphml.compile(graph)
    compiled = graphml.compile(graph, weights={"w": np.full(4, 2, np.float32)}, threads=1)
    compiled.program.inputs["x"][:1] = 3
    out = compiled.program.run({"T": 1}, None)["y"]  # type: ignore[arg-type]  # it has no state
    np.testing.assert_allclose(out, np.full((1, 4), 2), rtol=1e-5)


def test_a_compiled_path_gives_its_device_back(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = []
    monkeypatch.setattr(Executor, "close", lambda self: closed.append(self))
    compiled = graphml.compile(path, "reference")
    assert not closed
    del compiled
    assert len(closed) == 1
