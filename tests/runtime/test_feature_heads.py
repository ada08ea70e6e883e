"""EAGLE-3: the layer's logits and rows as llama.cpp's, and texts that stay the same with its drafts.

`tests/data/drafting` holds goldens as `tests/golden.py` describes them, with the layer's own rows beside the
logits. The rows of the other model, and which ids are drafted, follow formulas, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphml
from graphml.api.engine_memory import n_blocks_for
from graphml.errors import ArchitectureError, UsageError
from graphml.runtime.blocks.drafting import StepTimes
from graphml.runtime.programs.model_graphs import HIDDEN
from graphml.runtime.sessions.feature_head import FeatureHead
from graphml.runtime.sessions.prediction_head import head_cell_bytes
from graphml.sampling import SamplingParams
from tests import golden
from tests.backend_pairs import BACKENDS
from tests.drafted_model import N_VOCAB, WIDTH, as_successors, write_model
from tests.golden import Floats, nmse
from tests.one_text import OneText

FOLDER = golden.FOLDER.parent / "drafting"
PROMPT = [3, 7, 1, 9, 22, 5]


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lengths of drafts do not depend on what else the machine does, and unlikely ids are drafted, too."""
    monkeypatch.setattr(StepTimes, "of", lambda self, n_rows: 1 + 0.05 * n_rows)
    monkeypatch.setattr("graphml.runtime.blocks.drafting.LEAST_PROBABILITY", 0.0)


def read(kind: str) -> tuple[golden.Golden, Floats, dict[str, np.ndarray[Any, Any]]]:
    """A golden, the layer's own rows, and its tensors."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(golden, "FOLDER", FOLDER)
        of = golden.read.__wrapped__(f"eagle3-{kind}")
    tensors: dict[str, np.ndarray[Any, Any]] = {
        name: golden.weights(name, sizes, of.seed) for name, sizes in of.tensors.items()
    }
    n_drafted = of.tensors["output.weight"][1]
    if n_drafted < N_VOCAB:
        tensors["d2t"] = (np.arange(n_drafted, dtype=np.int64) * 7 + 3) % N_VOCAB
    return of, np.load(FOLDER / f"eagle3-{kind}.npz")["rows"], tensors


def write_draft(path: Path, kind: str, without: tuple[str, ...] = (), **keys: Any) -> Path:
    of, _, tensors = read(kind)
    changed = {f"eagle3.{key}": (of.metadata[f"eagle3.{key}"][0], value) for key, value in keys.items()}
    kept = {name: array for name, array in tensors.items() if name not in without}
    return golden.write_gguf(path, "eagle3", {**of.metadata, **changed}, kept)


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "model.gguf")


@pytest.fixture(scope="module", params=["plain", "fancy"])
def drafted(
    request: pytest.FixtureRequest, model_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, graphml.Model]]:
    draft = write_draft(tmp_path_factory.mktemp("draft") / "eagle3.gguf", request.param)
    with graphml.load(model_path, "cpu", threads=1, n_batch=32, draft_model=draft) as model:
        yield request.param, model


@pytest.mark.parametrize("kind", ["plain", "fancy"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_logits_and_rows_are_those_of_llama_cpp(
    model_path: Path, tmp_path: Path, kind: str, backend: str
) -> None:
    """In chunks and step by step; by the model's rows, and by rows of its own of the same meaning."""
    of, own, tensors = read(kind)
    draft = write_draft(tmp_path / "eagle3.gguf", kind)
    features = golden.weights("features.embd", (3 * WIDTH, len(of.tokens)), of.seed)
    joined = features.astype(np.float64)
    if kind == "fancy":
        joined /= np.sqrt((joined**2).mean(-1, keepdims=True) + 1e-5)
        joined *= tensors["enc.output_norm.weight"]
    projected = (joined @ tensors["fc.weight"].T).astype(np.float32)
    with graphml.load(model_path, backend, kv="f32", n_batch=16, draft_model=draft) as model:
        head = model.executor.head
        assert isinstance(head, FeatureHead)
        for read_rows in (head.of_model(features), head.of_own(projected)):
            text = OneText(head.executor, 64).sequence
            for start, end in ((0, 9), (9, 12), *((i, i + 1) for i in range(12, 24))):
                logits, row = head.step(text, of.tokens[start:end], read_rows[start:end])
                wanted = of.logits[end - 1]
                drafted = np.isfinite(wanted)
                assert (np.isfinite(logits) == drafted).all()
                assert nmse(logits[drafted], wanted[drafted]) < 1e-8
                assert nmse(row, own[end - 1]) < 1e-8


KINDS: list[dict[str, Any]] = [
    {},
    {"temperature": 1.2, "top_p": 0.95, "repeat_penalty": 1.1},
    {"temperature": 0.9, "top_k": 20, "rng": "llama.cpp"},
]


@pytest.mark.parametrize("kind", KINDS, ids=["greedy", "sampled", "llama.cpp"])
def test_texts_are_the_same_with_drafts_of_eagle3(
    drafted: tuple[str, graphml.Model], kind: dict[str, Any]
) -> None:
    _, model = drafted
    texts = []
    for spec_type in ("none", "eagle3", "auto"):
        params = SamplingParams(spec_type=spec_type, **kind)
        with model.session(seed=5) as session:
            texts.append([token.id for token in session.generate(PROMPT, params, 40)])
            texts.append(list(session.logits))
            stats = session.stats
        with model.engine(max_sequences=3, n_ctx=128) as engine:
            handles = [engine.submit(PROMPT[i:] * 6, params, 30, seed=i) for i in range(3)]
            results = [handle.result(60) for handle in handles]
        texts.append([result.tokens for result in results])
        assert (stats.n_drafted > 0) == (spec_type != "none")
        assert (sum(result.n_drafted for result in results) > 0) == (spec_type != "none")
    assert texts[:3] == texts[3:6] == texts[6:]


def test_hidden_rows_are_what_the_layers_are_given(drafted: tuple[str, graphml.Model]) -> None:
    """And logits have the bits that they have without."""
    _, model = drafted
    with model.session(capture="layers.*.ffn_residual") as session:
        logits = session.eval(PROMPT)
        given = [session.captured[f"layers.{layer - 1}.ffn_residual"] for layer in (1, 2, 3)]
    options = replace(model.executor.options, hidden=True)
    outputs = OneText(model.executor, options=options).outputs(PROMPT, all_logits=False)
    np.testing.assert_allclose(outputs[HIDDEN], np.concatenate(given, -1), rtol=1e-5, atol=1e-5)
    assert outputs["logits"][0].tobytes() == np.asarray(logits, np.float32).tobytes()


@pytest.mark.parametrize("third", range(3))
def test_drafts_are_right_where_a_row_says_what_follows(tmp_path: Path, third: int) -> None:
    """Embeddings and output matrix are the model's; the row's projection is the id after the next."""
    width = 40
    path = write_model(tmp_path / "model.gguf", as_successors, width, width)
    of, _, _ = read("plain")
    sizes_of = {64: width, 128: 2 * width}
    shared = {"token_embd.weight", "output.weight"}
    shapes = {
        name: tuple(sizes_of.get(n, n) for n in sizes)
        for name, sizes in of.tensors.items()
        if name not in shared
    }
    shapes |= {"blk.0.attn_q.weight": (2 * width, 64), "blk.0.attn_output.weight": (64, width)}
    tensors = {name: golden.weights(name, sizes, 1) for name, sizes in shapes.items()}
    for name in ("blk.0.attn_output.weight", "blk.0.ffn_down.weight", "fc.weight"):
        tensors[name] = np.zeros_like(tensors[name])
    successor = np.roll(np.eye(width, dtype=np.float32), 1, axis=0)
    tensors["fc.weight"][:, third * width : (third + 1) * width] = successor
    keys = {
        **of.metadata,
        "eagle3.embedding_length": ("UINT32", width),
        "eagle3.vocab_size": ("UINT32", width),
    }
    draft = golden.write_gguf(tmp_path / "eagle3.gguf", "eagle3", keys, tensors)
    with graphml.load(path, "cpu", threads=1, draft_model=draft) as model, model.session() as session:
        params = SamplingParams(spec_type="eagle3", spec_draft_n_max=1)
        ids = [token.id for token in session.generate([3, 7], params, 30)]
        assert ids == [(8 + i) % width for i in range(30)]
        assert session.stats.n_drafted > 10
        assert session.stats.n_accepted == session.stats.n_drafted


def refused(path: Path, draft: Path, error: type[Exception] = UsageError) -> str:
    with pytest.raises(error) as raised:
        graphml.load(path, "cpu", threads=1, draft_model=draft).close()
    return str(raised.value)


def test_a_drafter_that_does_not_fit_is_refused(model_path: Path, tmp_path: Path) -> None:
    def draft(kind: str = "fancy", without: tuple[str, ...] = (), **keys: Any) -> Path:
        return write_draft(tmp_path / "draft.gguf", kind, without, **keys)

    assert "hidden rows of 48 numbers; " in refused(model_path, draft(target_hidden_size=48))
    for layers in ([1, 2, 4], [0, 1, 2]):
        assert "numbers from 1 to 3" in refused(model_path, draft(target_layers=layers))
    assert "wanted the numbers of 3 layers" in refused(
        model_path, draft(target_layers=[1, 2]), ArchitectureError
    )
    assert "wanted 1 layer" in refused(model_path, draft(block_count=2), ArchitectureError)
    assert "of 128 ids and 64 numbers" in refused(model_path, draft(without=("token_embd.weight",)))
    assert "logits of 48 ids and no tensor d2t" in refused(model_path, draft(without=("d2t",)))
    unread = refused(model_path, draft(norm_before_fc=False))
    assert "has; got enc.output_norm.weight besides" in unread
    assert "wanted and not in the file" in refused(
        model_path, draft(without=("fc.weight",)), ArchitectureError
    )
    small = write_model(tmp_path / "small.gguf", n_vocab=100)
    assert "has logits of 128 ids" in refused(small, draft("plain"))


def test_ids_of_a_drafter_are_the_models(model_path: Path, tmp_path: Path) -> None:
    of, _, tensors = read("fancy")
    for wrong in (tensors["d2t"] + 100, tensors["d2t"] * 0, tensors["d2t"][:40]):
        draft = golden.write_gguf(tmp_path / "d.gguf", "eagle3", of.metadata, {**tensors, "d2t": wrong})
        assert "tensor d2t: wanted 48 different ids below 128" in refused(model_path, draft)


def test_a_drafter_alone_is_no_model(tmp_path: Path) -> None:
    path = write_draft(tmp_path / "eagle3.gguf", "plain")
    with pytest.raises(ArchitectureError, match=r"drafts for another one.*draft_model"):
        graphml.load(path, "cpu")


def test_kinds_of_drafts_want_their_files(drafted: tuple[str, graphml.Model], model_path: Path) -> None:
    _, model = drafted
    with (
        graphml.load(model_path, "cpu", threads=1) as plain,
        plain.session() as session,
        pytest.raises(UsageError, match=r"eagle3 wants a model.*has none"),
    ):
        session.generate([1], SamplingParams(spec_type="eagle3"))
    for kind, why in (("draft", "one for spec_type eagle3"), ("mtp", "was opened with one")):
        with model.session() as session, pytest.raises(UsageError, match=why):
            session.generate([1], SamplingParams(spec_type=kind))
    with pytest.raises(UsageError, match="wants a model on one backend"):
        graphml.load(model_path, "cpu,reference", draft_model=model.executor.head.executor.file.path).close()


def test_cells_of_the_drafter_are_a_part_of_an_engines_memory(
    drafted: tuple[str, graphml.Model], model_path: Path
) -> None:
    _, model = drafted
    assert head_cell_bytes(model.executor) > 0
    with graphml.load(model_path, "cpu", threads=1) as plain:
        assert n_blocks_for(model.executor, 100_000, 2, 4096) < n_blocks_for(plain.executor, 100_000, 2, 4096)
