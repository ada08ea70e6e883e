"""Keys and values kept as Hadamard transforms: in float32 the same logits, in blocks better ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from graphml_models._samples import transformer

import graphml
from graphml.errors import UsageError
from graphml.ir.cache_types import CACHE_NAMES, KeptAs, cache_form, cache_types
from graphml.runtime.programs.executor import Executor
from graphml.runtime.programs.load_options import LoadOptions
from graphml.runtime.programs.open_executor import open_executor
from tests import golden
from tests.golden import Floats, nmse
from tests.one_text import OneText
from tests.sample_models import MODELS, kind_of, write_model
from tests.transformers_records import N_GREEDY, SOURCE

# Latent keys that are the values, too; sinks; selections; keys of another layer; windows; shared blocks.
NAMED = ["deepseek2-moe", "gpt-oss-moe", "dots3note-moe", "minimax-m3-moe", "gemma3-dense", "kimi-linear-moe"]
NAMES = sorted({*golden.some(12), *NAMED} - {"mamba-dense", "mamba2-dense"})
TOKENS = np.random.default_rng(5).integers(0, 80, 40)


@pytest.fixture(scope="module", autouse=True)
def _files(tmp_path_factory: pytest.TempPathFactory) -> None:
    golden.keep_files(tmp_path_factory.mktemp("transformed"))


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the type."""
    monkeypatch.setattr(KeptAs, "transformed", (True, True))


def ops(executor: Executor) -> set[str]:
    return {node.op.name for node in executor.compiled(1, 1).graph.nodes}


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("name", NAMES)
def test_what_is_not_rounded_is_what_llama_cpp_computes(name: str) -> None:
    model = golden.read(name)
    executor = open_executor(golden.file(name), LoadOptions("reference", kv="f32", n_batch=32))
    text = OneText(executor)
    causal = executor.architecture.causal
    pieces = [model.tokens[:7], model.tokens[7:]] if causal else [model.tokens]
    logits = np.concatenate([text.step(piece) for piece in pieces])
    assert "walsh_hadamard" in ops(executor)
    executor.close()
    assert nmse(logits, model.logits) < 1e-6


def test_they_cover_what_reads_a_cache() -> None:
    read: set[str] = set()
    for name in NAMES:
        executor = open_executor(golden.file(name), LoadOptions("reference", kv="f32", n_batch=32))
        read |= ops(executor)
        executor.close()
    assert {"attention", "selected_attention", "select_blocks"} <= read


def test_a_source_text_and_distances(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """T5: relative attention, and attention to what the encoder's graph wrote."""
    path = write_model(tmp_path / "t5.gguf", *MODELS["t5-plain"])
    answers: list[list[int]] = []
    for value in ((False, False), (True, True)):
        monkeypatch.setattr(KeptAs, "transformed", value)
        with graphml.load(path, "reference", kv="f32") as model, model.session() as session:
            answers.append([token.id for token in session.generate(SOURCE.tolist(), max_tokens=N_GREEDY)])
            assert ("walsh_hadamard" in ops(model.executor)) == value[0]
            assert "relative_attention" in ops(model.executor)
    assert answers[0] == answers[1]


def test_uneven_keys_and_values_lose_less(tmp_path: Path) -> None:
    """Of a model of which one element of each key and value is far larger than the others."""
    heads = {"attention.head_count": 2, "attention.head_count_kv": 1}
    model = transformer("llama", "wide", n_head_kv=2, metadata=heads)
    metadata = {key: (kind_of(value), value) for key, value in model.metadata.items()}
    tensors = {name: golden.weights(name, shape[::-1], seed=7) for name, shape in model.tensors.items()}
    for name, weight in tensors.items():
        if name.endswith(("attn_k.weight", "attn_v.weight")):
            weight[5::32] *= 20
    path = golden.write_gguf(tmp_path / "uneven.gguf", "llama", metadata, tensors)
    rows: dict[str, Floats] = {}
    for kept in ("f32", "q4_0", "q4_0-plain", "q4_0/q4_0-plain", "q4_0-plain/q4_0"):
        executor = open_executor(path, LoadOptions("cpu", threads=2, kv=kept, n_batch=len(TOKENS)))
        assert ("walsh_hadamard" in ops(executor)) == (kept not in ("f32", "q4_0-plain"))
        rows[kept] = OneText(executor).step(TOKENS)
        executor.close()
    costs = {kept: nmse(logits, rows["f32"]) for kept, logits in rows.items()}
    assert costs["q4_0"] < costs["q4_0-plain"] / 3
    assert costs["q4_0"] < min(costs["q4_0/q4_0-plain"], costs["q4_0-plain/q4_0"])


def test_what_is_kept_otherwise_has_another_name() -> None:
    """Saved rows of blocks without a transform, of earlier versions, too, have the type's own name."""
    forms = [cache_form(name) for name in CACHE_NAMES]
    assert len(set(forms)) == len(forms)
    assert [cache_form(name) for name in ("f16", "q4_0", "q4_0-plain", "q8_0-plain/f16")] == [
        *("f16", "q4_0+hadamard", "q4_0", "q8_0/f16"),
    ]
    assert [
        cache_types(name).most.transformed
        for name in ("f16", "q8_0/f32", "f16/q4_0", "q4_0-plain/q4_0", "bf16")
    ] == [
        *((False, False), (True, False), (False, True), (False, True), (False, False)),
    ]


@pytest.mark.parametrize("kv", ["f16-plain", "q4_0-plain/", "q4_0/f32-plain", "q4_0-plain-plain"])
def test_only_blocks_have_a_plain_form(kv: str) -> None:
    with pytest.raises(UsageError, match="-plain is for q8_0, q5_1"):
        LoadOptions("reference", kv=kv)


def test_a_session_that_was_saved_otherwise_is_refused(tmp_path: Path) -> None:
    heads = {"attention.head_count": 2, "attention.head_count_kv": 1}
    path = write_model(tmp_path / "wide.gguf", "llama", transformer("llama", "wide", 2, metadata=heads))
    with graphml.load(path, "reference", kv="q4_0-plain") as model:
        session = model.session()
        session.eval(TOKENS[:8].tolist())
        session.save(tmp_path / "saved")
    with (
        graphml.load(path, "reference", kv="q4_0") as model,
        pytest.raises(
            UsageError, match=r"another cache type.*is 'q4_0', that of this model is 'q4_0.hadamard'"
        ),
    ):
        model.load_session(tmp_path / "saved")


@pytest.mark.parametrize("last", ["attention", "rows", "reshape"])
def test_values_are_compared_in_their_own_basis(last: str, tmp_path: Path) -> None:
    """Attention's node is what it gives, whatever the cache keeps; another name has what is transformed."""
    heads = {"attention.head_count": 2, "attention.head_count_kv": 1}
    path = write_model(tmp_path / "wide.gguf", "llama", transformer("llama", "wide", 2, metadata=heads))
    with graphml.load(path, kv="f32") as plain, graphml.load(path, kv="q8_0") as kept:
        rows = graphml.compare(plain, kept, prompt=TOKENS[:8].tolist()).rows
    values = [row for row in rows if last in row.node.rpartition(".")[2]]
    assert {row.other_op for row in values} >= ({"walsh_hadamard"} if last == "attention" else set())
    assert values
    assert max(row.difference.nmse for row in values) < 0.01
