"""DFlash, DSpark and DFlash 2: logits as llama.cpp's, and texts that stay the same with their drafts.

`tests/data/drafting/dflash-*` hold goldens as `tests/golden.py` describes them: logits [text, row, id] of
llama.cpp 0.5.0 of a block behind the first `ends` tokens, whose rows of the other model follow a formula, and
DSpark's confidence; of DFlash 2 candidates [text, row, n], and their scores [text, row, n, n] behind each of
the row before. Weights and caches are f32, and GELU is computed, where llama.cpp has a table of 16-bit
numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphml
from graphml.errors import ArchitectureError, UsageError, WeightsError
from graphml.runtime.blocks.drafting import Proposal, StepTimes
from graphml.runtime.programs.model_graphs import HIDDEN
from graphml.runtime.sessions.block_head import BlockDrafter, BlockHead
from graphml.runtime.sessions.prediction_head import head_cell_bytes
from graphml.sampling import SamplingParams
from tests import golden
from tests.backend_pairs import BACKENDS, GPUS
from tests.drafted_model import N_VOCAB, WIDTH, as_successors, write_model
from tests.golden import nmse
from tests.one_text import OneText

FOLDER = golden.FOLDER.parent / "drafting"
FORMS = ("plain", "fancy", "causal", "dspark", "dspark-later")
MASK = "tokenizer.ggml.mask_token_id"
PROMPT = [3, 7, 1, 9, 22, 5]
Arrays = dict[str, np.ndarray[Any, Any]]


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lengths of drafts do not depend on what else the machine does, and unlikely ids are drafted, too."""
    monkeypatch.setattr(StepTimes, "of", lambda self, n_rows: 1 + 0.05 * n_rows)
    monkeypatch.setattr("graphml.runtime.blocks.drafting.LEAST_PROBABILITY", 0.0)


def spec(form: str) -> golden.Golden:
    return golden.spec(FOLDER / f"dflash-{form}.json")


def write_draft(path: Path, form: str, without: Sequence[str] = (), change: Any = dict, **keys: Any) -> Path:
    """keys: metadata in place of the golden's, `__` for a dot; without: tensors and keys that it lacks."""
    of = spec(form)
    tensors: Arrays = {name: golden.weights(name, sizes, of.seed) for name, sizes in of.tensors.items()}
    n_drafted = of.tensors["output.weight"][1]
    if n_drafted < N_VOCAB:
        tensors["d2t"] = (np.arange(n_drafted, dtype=np.int64) * 7 + 3) % N_VOCAB
    said = {f"dflash.{key.replace('__', '.')}": value for key, value in keys.items() if key != "mask"}
    kinds = {bool: "BOOL", int: "UINT32", float: "FLOAT32", str: "STRING", list: "ARRAY INT32"}
    more = {key: (kinds[type(value)], value) for key, value in said.items()}
    more[MASK] = "UINT32", keys.get("mask", 127)
    metadata = {key: value for key, value in {**of.metadata, **more}.items() if key not in without}
    kept = {name: array for name, array in change(tensors).items() if name not in without}
    return golden.write_gguf(path, "dflash", metadata, kept)


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "model.gguf")


@pytest.fixture(scope="module", params=["fancy", "causal", "dspark", "selector"])
def drafted(
    request: pytest.FixtureRequest, model_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[graphml.Model]:
    draft = write_draft(tmp_path_factory.mktemp("draft") / "dflash.gguf", request.param)
    with graphml.load(model_path, threads=1, n_batch=32, kv="f32", draft_model=draft) as model:
        yield model


def head_of(model: graphml.Model) -> BlockHead:
    head = model.executor.head
    assert isinstance(head, BlockHead)
    return head


TRIED = [
    (form, backend)
    for form in FORMS
    for backend in BACKENDS
    if backend not in GPUS or form in ("fancy", "dspark")
]


@pytest.mark.parametrize(("form", "backend"), TRIED)
def test_logits_are_those_of_llama_cpp(model_path: Path, tmp_path: Path, form: str, backend: str) -> None:
    of, draft = spec(form), write_draft(tmp_path / "dflash.gguf", form)
    features = golden.weights("features.embd", (2 * WIDTH, len(of.tokens)), of.seed)
    with (
        np.load(FOLDER / f"dflash-{form}.npz") as wanted,
        graphml.load(model_path, backend, kv="f32", n_batch=32, draft_model=draft) as model,
    ):
        head = head_of(model)
        text, first = OneText(head.executor, 64).sequence, 0
        for i, end in enumerate(wanted["ends"]):
            rows = list(head.block(text, features[first:end], of.tokens[end]))
            text.rewind(end)
            first = end
            assert len(rows) == 8 - (form != "dspark")
            for (logits, _), row in zip(rows, wanted["logits"][i, -len(rows) :], strict=True):
                known = row if head.drafted is None else row[head.drafted]
                assert np.isfinite(row).sum() == len(logits)
                assert nmse(logits, known) < 1e-10
            confidence = [sure for _, sure in rows]
            if form == "dspark":
                assert confidence == pytest.approx(wanted["confidence"][i], rel=1e-5)
            else:
                assert confidence == [None] * len(rows)


@pytest.mark.parametrize("backend", BACKENDS)
def test_candidates_and_scores_are_those_of_llama_cpp(model_path: Path, tmp_path: Path, backend: str) -> None:
    """DFlash 2's: of each row those behind the id that the row before has chosen."""
    of, draft = spec("selector"), write_draft(tmp_path / "dflash.gguf", "selector")
    features = golden.weights("features.embd", (2 * WIDTH, len(of.tokens)), of.seed)
    with (
        np.load(FOLDER / "dflash-selector.npz") as wanted,
        graphml.load(model_path, backend, kv="f32", n_batch=32, draft_model=draft) as model,
    ):
        head = head_of(model)
        assert head.spec_type == "dflash"
        text, first = OneText(head.executor, 64).sequence, 0
        for i, end in enumerate(wanted["ends"]):
            chosen = 0
            block = head.block(text, features[first:end], of.tokens[end])
            known = zip(wanted["candidates"][i], wanted["scores"][i], strict=True)
            for (row, confidence), (ids, scores) in zip(block, known, strict=True):
                assert {*np.flatnonzero(np.isfinite(row))} == {*ids}
                assert nmse(row[ids], scores[chosen]) < 1e-10
                assert confidence is None
                chosen = int(np.argmax(scores[chosen]))
            text.rewind(end)
            first = end


KINDS: list[dict[str, Any]] = [
    {},
    {"temperature": 1.2, "top_p": 0.95, "repeat_penalty": 1.1},
    {"temperature": 0.9, "top_k": 20, "rng": "llama.cpp"},
]


@pytest.mark.parametrize("kind", KINDS, ids=["greedy", "sampled", "llama.cpp"])
def test_texts_are_the_same_with_drafts_of_blocks(drafted: graphml.Model, kind: dict[str, Any]) -> None:
    texts = []
    for spec_type in ("none", head_of(drafted).spec_type, "auto"):
        params = SamplingParams(spec_type=spec_type, **kind)
        with drafted.session(seed=5) as session:
            texts.append([token.id for token in session.generate(PROMPT, params, 40)])
            texts.append(list(session.logits))
            stats = session.stats
        with drafted.engine(max_sequences=3, n_ctx=128) as engine:
            handles = [engine.submit(PROMPT[i:] * 6, params, 30, seed=i) for i in range(3)]
            results = [handle.result(60) for handle in handles]
        texts.append([result.tokens for result in results])
        assert (stats.n_drafted > 0) == (spec_type != "none")
        assert (sum(result.n_drafted for result in results) > 0) == (spec_type != "none")
    assert texts[:3] == texts[3:6] == texts[6:]


def test_drafts_are_of_the_text_so_far(drafted: graphml.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """In sessions and engines, behind drafts that were wrong: as if all of it was read at once."""
    propose, seen = BlockDrafter.propose, list[tuple[list[int], list[int]]]()

    def kept(drafter: BlockDrafter, ids: Sequence[int], count: int) -> Proposal:
        proposal = propose(drafter, ids, count)
        seen.append((list(ids), proposal.ids))
        return proposal

    monkeypatch.setattr(BlockDrafter, "propose", kept)
    params = SamplingParams(temperature=1.0)
    with drafted.session(seed=5) as session:
        list(session.generate(PROMPT * 10, params, 40))
    n_of_session = len(seen)
    with drafted.engine(max_sequences=2, n_ctx=128) as engine:
        handles = [engine.submit(PROMPT[i:] * 3, params, 30, seed=i) for i in range(2)]
        assert all(handle.result(60).tokens for handle in handles)
    monkeypatch.undo()
    assert 5 < n_of_session < len(seen) - 5
    head, options = head_of(drafted), replace(drafted.executor.options, hidden=True)
    for ids, draft in seen[::3]:
        target, text = OneText(drafted.executor, 128, options), OneText(head.executor, 192).sequence
        for first in range(0, len(ids) - 1, 16):
            part = ids[first : min(first + 16, len(ids) - 1)]
            features = target.outputs(part)[HIDDEN][: len(part)]
            if first + 16 < len(ids) - 1:
                head.read(text, features)
        block = [head.id_of(int(np.argmax(row))) for row, _ in head.block(text, features, ids[-1])]
        assert draft
        assert draft == block[: len(draft)]


def quiet(tensors: Arrays) -> Arrays:
    """Layers that add nothing."""
    for name, array in tensors.items():
        if name.endswith(("attn_output.weight", "ffn_down.weight")):
            array[:] = 0
        if "norm" in name:
            array[:] = 1
    return tensors


def constant(tensors: Arrays) -> Arrays:
    """A model whose next id is always 7."""
    tensors = quiet(tensors)
    tensors["token_embd.weight"] = np.ones_like(tensors["token_embd.weight"])
    tensors["output.weight"] = np.zeros_like(tensors["output.weight"])
    tensors["output.weight"][7] = 1
    return tensors


def test_drafts_are_right_where_all_is_one_id(tmp_path: Path) -> None:
    """Embeddings and output matrix are the model's."""
    path = write_model(tmp_path / "model.gguf", constant)
    shared = ["token_embd.weight", "output.weight"]
    draft = write_draft(tmp_path / "draft.gguf", "plain", shared, quiet)
    with graphml.load(path, threads=1, draft_model=draft) as model, model.session() as session:
        ids = [token.id for token in session.generate([3, 9], SamplingParams(spec_type="dflash"), 40)]
        assert ids == [7] * 40
        assert session.stats.n_accepted == session.stats.n_drafted > 20


def test_drafts_of_dspark_are_right_where_an_id_says_what_follows(tmp_path: Path) -> None:
    def successors(tensors: Arrays) -> Arrays:
        """The id before decides alone; the confidence of all is 1/2."""
        tensors = quiet(tensors)
        for name in ("output.weight", "conf_proj.weight", "conf_proj.bias"):
            tensors[name][:] = 0
        tensors["markov_w1.weight"] = np.eye(WIDTH, dtype=np.float32)
        tensors["markov_w2.weight"] = 8 * np.roll(np.eye(WIDTH, dtype=np.float32), 1, axis=0)
        for name in ("token_embd.weight", "output.weight"):
            tensors[name] = tensors[name][:WIDTH]
        tensors["conf_proj.weight"] = np.zeros((1, 2 * WIDTH), np.float32)
        return tensors

    path = write_model(tmp_path / "model.gguf", as_successors, WIDTH, WIDTH)
    draft = write_draft(tmp_path / "draft.gguf", "dspark", (), successors, vocab_size=WIDTH, mask=0)
    with graphml.load(path, threads=1, draft_model=draft) as model, model.session() as session:
        ids = [token.id for token in session.generate([3, 7], SamplingParams(spec_type="dspark"), 40)]
        assert ids == [(8 + i) % WIDTH for i in range(40)]
        assert session.stats.n_accepted == session.stats.n_drafted > 20


def refused(path: Path, draft: Path, error: type[Exception] = UsageError) -> str:
    with pytest.raises(error) as raised:
        graphml.load(path, threads=1, draft_model=draft).close()
    return str(raised.value)


def test_a_file_of_blocks_that_does_not_fit_is_refused(model_path: Path, tmp_path: Path) -> None:
    def draft(form: str = "fancy", error: type[Exception] = UsageError, **more: Any) -> str:
        return refused(model_path, write_draft(tmp_path / "draft.gguf", form, **more), error)

    for layers in ([1, 4], [0, 1]):
        assert "numbers from 1 to 3" in draft(target_layers=layers)
    assert "target_layers: wanted the numbers" in draft(
        error=ArchitectureError, without=["dflash.target_layers"]
    )
    assert "block_size: wanted at least 2" in draft(error=ArchitectureError, block_size=1)
    assert "at least 16 tokens, those of a block" in draft(error=ArchitectureError, block_size=16)
    assert "hidden_activation: wanted silu" in draft(error=ArchitectureError, hidden_activation="tanh")
    assert "hyper_connection.count: wanted 0" in draft(error=ArchitectureError, hyper_connection__count=4)
    assert MASK in draft(error=WeightsError, without=[MASK])
    assert "value_length: wanted 12" in draft(error=ArchitectureError, attention__value_length=8)
    assert "logits of 48 ids and no tensor d2t" in draft(without=["d2t"])
    assert "tensor fc.weight is wanted" in draft(error=ArchitectureError, without=["fc.weight"])
    assert "tensor markov_w2.weight is wanted" in draft(
        "dspark", ArchitectureError, without=["markov_w2.weight"]
    )
    assert "got markov_w2.weight besides" in draft("dspark-later", without=["markov_w1.weight"])
    wanted = "keys conv_kernel_size and selector_top_k of at least 1"
    assert wanted in draft("selector", ArchitectureError, conv_group_size=7)
    assert wanted in draft("selector", ArchitectureError, selector_top_k=0)
    assert "wanted 40 rows; " in draft("selector", ArchitectureError, conv_group_size=4, conv_kernel_size=2)

    def other_base(tensors: Arrays) -> Arrays:
        return {**tensors, "blk.0.attn_conv_base": np.zeros((3, 2, WIDTH), np.float32)}

    assert "attn_conv_base: wanted (2, 3, 40)" in draft("selector", ArchitectureError, change=other_base)
    assert "tensor blk.0.ffn_conv_proj.weight is wanted" in draft(
        "selector", ArchitectureError, without=["blk.0.ffn_conv_proj.weight"]
    )
    assert "blk.0.attn_conv_base, " in draft("selector", without=["selector_hidden.weight"])
    small = write_model(tmp_path / "small.gguf", n_vocab=100)
    assert "a mask token below 100" in refused(small, write_draft(tmp_path / "draft.gguf", "plain"))
    narrow = write_model(tmp_path / "narrow.gguf", width=48)
    assert "hidden rows of 40 numbers; " in refused(narrow, write_draft(tmp_path / "draft.gguf", "plain"))


def test_kinds_of_blocks_want_their_files(drafted: graphml.Model) -> None:
    own = head_of(drafted).spec_type
    for kind in {"dflash", "dspark", "eagle3"} - {own}:
        with drafted.session() as session, pytest.raises(UsageError, match=f"{kind} wants .* has another"):
            session.generate([1], SamplingParams(spec_type=kind))
    assert head_cell_bytes(drafted.executor) > 0
