"""Opening a model and running its programs: what goes wrong is told, and a failed step leaves no trace."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from graphml.backend import Backend
from graphml.errors import ArchitectureError, BackendError, GraphError, GraphmlError, UsageError, WeightsError
from graphml.ir.graph import Graph
from graphml.loading import discovery
from graphml.loading.architecture import SampleModel
from graphml.loading.unused_tensors import tell_unused
from graphml.passes import pipeline
from graphml.passes.fusion_log import FusionLog
from graphml.runtime.programs.executor import Executor
from graphml.runtime.programs.load_options import LoadOptions
from graphml.runtime.programs.memory_needed import arena_bytes
from graphml.runtime.programs.open_executor import open_executor
from graphml.runtime.programs.step_inputs import graph_arrays
from graphml.weights import ModelFile, open_model
from tests.golden import weights, write_gguf
from tests.one_text import OneText

PASSES = ["build", "fuse", "quantize_activations", "fuse_quantized", "fuse_last"]
KINDS = {int: "UINT32", float: "FLOAT32", str: "STRING"}


def sample() -> SampleModel:
    made = discovery.architecture("llama").sample
    assert made is not None
    return made("llama")[0]


def write(path: Path, model: SampleModel, architecture: str = "llama") -> Path:
    metadata = {key: (KINDS[type(value)], value) for key, value in model.metadata.items()}
    tensors = {name: weights(name, shape[::-1], 1) for name, shape in model.tensors.items()}
    return write_gguf(path, architecture, metadata, tensors)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(tmp_path / "tiny.gguf", sample())


@pytest.fixture
def executor(path: Path) -> Iterator[Executor]:
    made = open_executor(path, LoadOptions("reference", kv="f32", n_batch=8))
    yield made
    made.close()


def test_programs_are_compiled_when_needed_and_kept(executor: Executor) -> None:
    first = executor.compiled(1, 1)
    assert executor.compiled(1, 1) is first
    assert list(first.snapshots) == PASSES
    assert set(first.seconds) == {*PASSES, "plan", "lower"}
    assert arena_bytes(executor)["decode"] < arena_bytes(executor)["prefill"]


def test_a_pass_that_breaks_a_graph_is_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def halves(graph: Graph, backend: Backend, names: Collection[str]) -> tuple[Graph, FusionLog]:
        return Graph(graph.nodes[len(graph.nodes) // 2 :], graph.outputs), FusionLog()

    passes = (pipeline.PASSES[0], pipeline.Pass("halve", halves))
    monkeypatch.setattr("graphml.compiler.compile.PASSES", passes)
    made = open_executor(path, LoadOptions("reference"))
    with pytest.raises(GraphError, match=r"after the pass 'halve': .* does not come before it"):
        made.compiled(1, 1)
    made.close()


def test_a_step_takes_one_to_n_batch_ids(executor: Executor) -> None:
    text = OneText(executor, 32)
    for count in (0, 9):
        with pytest.raises(UsageError, match=f"wanted 1 to 8 ids, some of each sequence; got {count}"):
            text.step([0] * count, all_logits=False)
    assert text.sequence.n_computed == 0
    assert text.step([0] * 8).shape == (8, 80)


def test_a_failed_step_gives_its_cells_back(executor: Executor, monkeypatch: pytest.MonkeyPatch) -> None:
    text = OneText(executor, 32)
    before = text.step([1, 2, 3], all_logits=False)

    def stop(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(executor.compiled(8, 1).program, "run", stop)
        with pytest.raises(KeyboardInterrupt):
            text.step([4, 5], all_logits=False)
    assert text.sequence.n_computed == 3
    text.sequence.rewind(0)
    again = text.step([1, 2, 3], all_logits=False)
    np.testing.assert_array_equal(again, before)


@pytest.mark.parametrize("cache_dtype", ["f16", "f32", "bf16"])
def test_the_state_has_the_size_of_the_cache(path: Path, cache_dtype: str) -> None:
    made = open_executor(path, LoadOptions("reference", kv=cache_dtype))
    state = OneText(made).state
    assert state.n_bytes == 64 * 2 * 2 * 64 * (4 if cache_dtype == "f32" else 2)
    assert len(state.array("cache.1.v")) == 64
    made.close()


def test_an_unknown_cache_dtype_lists_the_known(path: Path) -> None:
    with pytest.raises(UsageError, match=r"wanted one of f16, f32, .*q4_0, iq4_nl, or .*; got 'q4_k'"):
        open_executor(path, LoadOptions("reference", kv="q4_k"))


def test_closing_twice_is_fine(path: Path) -> None:
    made = open_executor(path, LoadOptions("reference"))
    made.compiled(1, 1)
    made.close()
    made.close()
    assert made.closed


def test_a_backend_that_cannot_be_used_says_why(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = replace(discovery.backend("reference"), unavailable=lambda: "no such luck")
    monkeypatch.setattr("graphml.loading.discovery.backend", lambda name: broken)
    with pytest.raises(BackendError, match="'reference' cannot be used here: no such luck"):
        open_executor(path, LoadOptions("reference"))


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    model = sample()
    tensors = {name: shape for name, shape in model.tensors.items() if name != "blk.1.attn_k.weight"}
    made = open_executor(
        write(tmp_path / "m.gguf", replace(model, tensors=tensors)), LoadOptions("reference")
    )
    with pytest.raises(ArchitectureError, match=r"m\.gguf: tensor blk\.1\.attn_k\.weight is wanted"):
        made.compiled(1, 1)
    made.close()


def test_a_tensor_of_a_format_of_activations_is_refused(path: Path) -> None:
    file = open_model(path)
    name, tensor = next(iter(file.tensors.items()))
    other = replace(tensor, dtype="q8_1")
    changed = ModelFile(file.path, file.metadata, {**file.tensors, name: other}, [])
    with pytest.raises(WeightsError, match=f"{name}.*: wanted a format of weights, got q8_1"):
        graph_arrays(changed)


def test_an_unused_tensor_is_named_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = sample()
    made = open_executor(
        write(tmp_path / "m.gguf", replace(model, tensors={**model.tensors, "blk.0.extra.weight": (4,)})),
        LoadOptions("reference", n_batch=8),
    )
    made.compiled(1, 1)
    made.compiled(8, 1)
    assert made.unused_tensors == ["blk.0.extra.weight"]
    (told,) = caplog.messages
    assert told.endswith("m.gguf: architecture 'llama' does not use blk.0.extra.weight")
    made.programs.forget()
    made.compiled(1, 1)
    made.close()
    again = open_executor(
        tmp_path / "m.gguf", LoadOptions("reference", n_batch=8)
    )  # as the other side of a comparison
    again.compiled(1, 1)
    assert caplog.messages == [told]
    again.close()


def test_an_unused_tensor_cannot_steer_the_terminal(caplog: pytest.LogCaptureFixture) -> None:
    tell_unused(Path("m.gguf"), "architecture 'llama'", ["a\x1b]0;\x07", "b" * 1000])
    (told,) = caplog.messages
    assert told == f"m.gguf: architecture 'llama' does not use 'a\\x1b]0;\\x07', '{'b' * 100}...'"


def test_nothing_is_said_of_a_model_that_is_used_whole(
    executor: Executor, caplog: pytest.LogCaptureFixture
) -> None:
    executor.compiled(1, 1)
    assert not caplog.messages


CONTRADICTIONS = [
    ("attention.head_count", 0),
    ("attention.head_count", 5),
    ("attention.head_count_kv", 0),
    ("attention.head_count_kv", 3),
    ("attention.key_length", 1 << 31),
    ("embedding_length", 32),
    ("block_count", 1 << 31),
    ("expert_used_count", 3),
    ("rope.dimension_count", 0),
    ("rope.dimension_count", 7),
    ("rope.dimension_count", 64),
    ("rope.freq_base", 0.0),
    ("rope.freq_base", float("nan")),
    ("rope.scaling.type", "magic"),
]


@pytest.mark.parametrize(("key", "value"), CONTRADICTIONS)
def test_metadata_that_do_not_fit_the_tensors_are_an_error_of_ours(
    key: str, value: float | str, tmp_path: Path
) -> None:
    model = sample()
    changed = replace(model, metadata={**model.metadata, f"llama.{key}": value})
    with pytest.raises(GraphmlError) as caught:  # noqa: PT012  # opening or building may find it
        made = open_executor(write(tmp_path / "m.gguf", changed), LoadOptions("reference"))
        try:
            made.compiled(1, 1)
        finally:
            made.close()
    assert "m.gguf" in str(caught.value)


def test_missing_metadata_are_named(tmp_path: Path) -> None:
    model = sample()
    keys = {key: value for key, value in model.metadata.items() if key != "llama.block_count"}
    with pytest.raises(WeightsError, match=r"llama\.block_count"):
        open_executor(write(tmp_path / "m.gguf", replace(model, metadata=keys)), LoadOptions("reference"))


def test_an_unknown_architecture_names_the_file(tmp_path: Path) -> None:
    file = write(tmp_path / "m.gguf", sample(), "lama")
    with pytest.raises(
        ArchitectureError, match=r"m\.gguf: unknown architecture 'lama'. Did you mean 'llama'\?"
    ):
        open_executor(file, LoadOptions("reference"))


def test_an_architecture_file_takes_the_place_of_the_known(tmp_path: Path) -> None:
    model = sample()
    keys = {key.replace("llama.", "my-model."): value for key, value in model.metadata.items()}
    file = write(tmp_path / "m.gguf", replace(model, metadata=keys), "my-model")
    own = tmp_path / "my_model.py"
    own.write_text("from graphml_models.llama import Config, build\n")
    made = open_executor(file, LoadOptions("reference", arch=own))
    assert made.build(1, 1).outputs["logits"].shape[-1] == 80
    made.close()


BIGRAMS = """
from graphml_models.llama import Config

def build(g, config, weights):
    return weights.linear(g.rows(g.embed(weights["token_embd"], g.tokens), g.output_rows), "output")
"""


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_a_graph_need_not_ask_for_every_input(backend: str, path: Path, tmp_path: Path) -> None:
    own = tmp_path / "bigrams.py"
    own.write_text(BIGRAMS)
    with contextlib.closing(open_executor(path, LoadOptions(backend, 1, arch=own, n_batch=8))) as made:
        got = OneText(made, 32).step([3, 5])
        assert set(made.compiled(8, 8).graph.leaves("input")) == {"tokens", "output_rows"}
    names = "token_embd.weight", "output.weight"
    table, output = (weights(name, sample().tensors[name][::-1], 1) for name in names)
    np.testing.assert_allclose(got, table[[3, 5]] @ output.T, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("build", "wanted"),
    [
        ("return None", "'own': build gave None; wanted the node of the logits"),
        ("raise RuntimeError('boom')", r"'own': RuntimeError: boom \(at .*own\.py:5\)"),
        ("return config.heads", r"'own': AttributeError: .*heads.* \(at .*own\.py:5\)"),
    ],
)
def test_what_an_architecture_does_wrong_is_told_with_its_line(
    build: str, wanted: str, path: Path, tmp_path: Path
) -> None:
    own = tmp_path / "own.py"
    own.write_text(
        f"from graphml_models.llama import Config\n\n\ndef build(g, config, weights):\n    {build}\n"
    )
    made = open_executor(path, LoadOptions("reference", arch=own))
    with contextlib.closing(made), pytest.raises(ArchitectureError, match=wanted) as caught:
        made.compiled(1, 1)
    assert "tiny.gguf" in str(caught.value)


def test_logits_for_fewer_or_more_ids_than_can_be_embedded_are_refused(tmp_path: Path) -> None:
    model = sample()
    for rows in (79, 81):
        tensors = {**model.tensors, "output.weight": (rows, model.tensors["output.weight"][1])}
        file = write(tmp_path / "m.gguf", replace(model, tensors=tensors))
        made = open_executor(file, LoadOptions("reference"))
        wanted = rf"logits for the 80 rows .*T<=1, {rows}"
        with contextlib.closing(made), pytest.raises(ArchitectureError, match=wanted):
            made.compiled(1, 1)
