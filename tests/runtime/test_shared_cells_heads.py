"""Gemma 4's assistants: logits and rows as llama.cpp's, and texts that stay the same with their drafts.

`tests/data/drafting/gemma4-assistant` holds logits [text, step, id] and rows of llama.cpp 0.5.0 behind the
first `ends` tokens of a text, each step with the id that the one before found most likely. Weights and caches
are f32, and GELU is computed, where llama.cpp has a table of 16-bit numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphml
from graphml.errors import ArchitectureError, UsageError
from graphml.loading.open_file import open_path
from graphml.runtime.blocks.drafting import Proposal, StepTimes
from graphml.runtime.programs.model_graphs import HIDDEN
from graphml.runtime.sessions.prediction_head import head_cell_bytes
from graphml.runtime.sessions.shared_cells_head import SharedCellsDrafter, SharedCellsHead
from graphml.runtime.steps.sequence_cells import SequenceCells
from graphml.sampling import SamplingParams
from tests import assistant_files, assistant_folders, golden
from tests.assistant_files import write_assistant, write_model
from tests.backend_pairs import BACKENDS
from tests.folder_records import TOKENS, write_folder
from tests.golden import Floats, nmse
from tests.one_text import OneText

PROMPT = [3, 7, 1, 9, 22, 5]


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lengths of drafts do not depend on what else the machine does, and unlikely ids are drafted, too."""
    monkeypatch.setattr(StepTimes, "of", lambda self, n_rows: 1 + 0.05 * n_rows)
    monkeypatch.setattr("graphml.runtime.blocks.drafting.LEAST_PROBABILITY", 0.0)


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("assistant")
    return write_model(folder / "model.gguf"), write_assistant(folder / "assistant.gguf")


@pytest.fixture(scope="module", params=[False, True], ids=["windows", "swa_full"])
def drafted(request: pytest.FixtureRequest, paths: tuple[Path, Path]) -> Iterator[graphml.Model]:
    path, draft = paths
    with graphml.load(path, threads=1, n_batch=32, draft_model=draft, swa_full=request.param) as model:
        yield model


def head_of(model: graphml.Model) -> SharedCellsHead:
    head = model.executor.head
    assert isinstance(head, SharedCellsHead)
    return head


class Followed:
    """A text of a model whose cells its assistant reads."""

    def __init__(self, model: graphml.Model) -> None:
        self.head, executor = head_of(model), model.executor
        self.text = OneText(executor, 128, replace(executor.options, hidden=True))
        self.n_computed, self.row = 0, np.empty(0, np.float32)
        self.cells = SequenceCells(self.text.room.runner, self.text.sequence)

    def read(self, ids: Sequence[int]) -> None:
        for first in range(0, len(ids), 16):
            part = ids[first : first + 16]
            self.row = self.text.outputs(part, all_logits=False)[HIDDEN][len(part) - 1]
        self.n_computed += len(ids)

    def behind(self, token: int, row: Floats) -> tuple[Floats, Floats]:
        return self.head.behind(self.cells, self.n_computed - 1, token, row)


@pytest.mark.parametrize(("backend", "swa_full"), [*((name, False) for name in BACKENDS), ("cpu", True)])
def test_logits_and_rows_are_those_of_llama_cpp(
    paths: tuple[Path, Path], backend: str, swa_full: bool
) -> None:
    """Of texts shorter and longer than the window."""
    tokens = golden.spec(assistant_files.SPEC).tokens
    path, draft = paths
    with (
        np.load(assistant_files.SPEC.with_suffix(".npz")) as wanted,
        graphml.load(path, backend, kv="f32", n_batch=16, draft_model=draft, swa_full=swa_full) as model,
    ):
        text = Followed(model)
        for i, end in enumerate(wanted["ends"]):
            text.read(tokens[text.n_computed : end])
            assert nmse(text.row, wanted["hidden"][i]) < 1e-8
            token, row = tokens[end], text.row
            for logits, own in zip(wanted["logits"][i], wanted["rows"][i], strict=True):
                got, row = text.behind(token, row)
                assert nmse(got, logits) < 1e-8
                assert nmse(row, own) < 1e-8
                token = int(np.argmax(logits))


@pytest.mark.parametrize("kind", assistant_folders.KINDS)
def test_logits_and_rows_of_folders_are_those_of_transformers(kind: str, tmp_path: Path) -> None:
    path = assistant_folders.write_model(tmp_path / "model", kind)
    config, tensors, wanted = assistant_folders.recorded(kind)
    assert any("masked_embedding" in name for name in tensors)
    draft = write_folder(tmp_path / "draft", config, tensors)
    with graphml.load(path, "reference", kv="f32", quant="fp32", draft_model=draft) as model:
        text = Followed(model)
        for i, end in enumerate(assistant_folders.ENDS):
            text.read(TOKENS[text.n_computed : end].tolist())
            token, row = int(TOKENS[end]), text.row
            for logits, own in zip(wanted["logits"][i], wanted["rows"][i], strict=True):
                got, got_row = text.behind(token, row)
                assert nmse(got, logits) < 1e-8
                assert nmse(got_row, own) < 1e-8
                token, row = int(np.argmax(logits)), own  # not its own, which makes each step less exact


@pytest.mark.parametrize(
    ("field", "value"),
    [("enable_moe_block", True), ("hidden_size_per_layer_input", 8), ("num_kv_shared_layers", 2),
     ("use_double_wide_mlp", True), ("tie_word_embeddings", False)],
)  # fmt: skip
def test_fields_of_a_folder_that_an_assistant_cannot_have_are_refused(
    field: str, value: object, tmp_path: Path
) -> None:
    config, tensors, _ = assistant_folders.recorded("gemma4_assistant")
    of = config if field in config else config["text_config"]
    of[field] = value
    with pytest.raises(ArchitectureError, match=rf"config\.json: {field} is '{value}'"):
        open_path(write_folder(tmp_path, config, tensors))


def test_a_folder_of_an_assistant_alone_is_no_model(tmp_path: Path) -> None:
    config, tensors, _ = assistant_folders.recorded("gemma4_assistant")
    with pytest.raises(ArchitectureError, match="no model of its own: it drafts for another"):
        graphml.load(write_folder(tmp_path, config, tensors), "reference")


KINDS: list[dict[str, Any]] = [
    {},
    {"temperature": 1.2, "top_p": 0.95, "repeat_penalty": 1.1},
    {"temperature": 0.9, "top_k": 20, "rng": "llama.cpp"},
]


@pytest.mark.parametrize("kind", KINDS, ids=["greedy", "sampled", "llama.cpp"])
def test_texts_are_the_same_with_an_assistant(drafted: graphml.Model, kind: dict[str, Any]) -> None:
    texts = []
    for spec_type in ("none", "mtp", "auto"):
        params = SamplingParams(spec_type=spec_type, **kind)
        with drafted.session(seed=5) as session:
            texts.append([token.id for token in session.generate(PROMPT, params, 60)])
            texts.append(list(session.logits))
            stats = session.stats
        with drafted.engine(max_sequences=3, n_ctx=128) as engine:
            handles = [engine.submit(PROMPT[i:] * 6, params, 30, seed=i) for i in range(3)]
            results = [handle.result(60) for handle in handles]
        texts.append([result.tokens for result in results])
        assert (stats.n_drafted > 0) == (spec_type != "none")
        assert (sum(result.n_drafted for result in results) > 0) == (spec_type != "none")
    assert texts[:3] == texts[3:6] == texts[6:]


def test_drafts_are_made_of_what_the_text_holds(
    drafted: graphml.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their first logits are those of the text alone, behind drafts that were wrong, too."""
    propose, behind = SharedCellsDrafter.propose, SharedCellsHead.behind
    seen: list[tuple[list[int], list[Floats]]] = []

    def kept(drafter: SharedCellsDrafter, ids: Sequence[int], count: int) -> Proposal:
        seen.append((list(ids), []))
        return propose(drafter, ids, count)

    def watched(head: SharedCellsHead, *arguments: Any) -> tuple[Floats, Floats]:
        logits, row = behind(head, *arguments)
        seen[-1][1].append(logits)
        return logits, row

    monkeypatch.setattr(SharedCellsDrafter, "propose", kept)
    monkeypatch.setattr(SharedCellsHead, "behind", watched)
    params = SamplingParams(temperature=1.0, spec_type="mtp", spec_draft_n_max=4)
    with drafted.session(seed=5) as session:
        list(session.generate(PROMPT * 3, params, 100))  # a ring of blocks begins anew
    n_of_session = len(seen)
    with drafted.engine(max_sequences=3, n_ctx=128) as engine:
        handles = [engine.submit(PROMPT[i:] * (i + 3), params, 30, seed=i) for i in range(3)]
        assert all(handle.result(60).tokens for handle in handles)
    monkeypatch.undo()
    assert 5 < n_of_session < len(seen) - 5
    for ids, drafts in seen:
        assert drafts
        text = Followed(drafted)
        text.read(ids[:-1])
        wanted, _ = text.behind(ids[-1], text.row)
        assert nmse(drafts[0], wanted) < 1e-5  # caches are f16


def test_an_assistant_knows_a_text_that_was_read_before(drafted: graphml.Model) -> None:
    """Behind a session that was read without drafts, and in an engine that finds a prompt's blocks."""
    params = SamplingParams(spec_type="mtp")
    with drafted.session() as session:
        session.eval(PROMPT * 5)
        list(session.generate([4], params, 20))
        assert session.stats.n_drafted > 0
    with drafted.engine(max_sequences=2, n_ctx=128) as engine:
        results = [engine.submit(PROMPT * 11, params, 20).result(60) for _ in range(2)]
        assert results[0].tokens == results[1].tokens
        assert all(result.n_drafted > 0 for result in results)


def repeats(tensors: dict[str, Floats]) -> dict[str, Floats]:
    """Layers that add nothing, between embeddings that tell ids apart: each id is followed by itself."""
    for name, array in tensors.items():
        if name.endswith(("attn_output.weight", "ffn_down.weight", ".proj.weight")):
            array[:] = 0
        if "norm" in name or name.endswith("layer_output_scale.weight"):
            array[:] = 1
    for name in ("token_embd.weight", "nextn.pre_projection.weight"):
        if name in tensors:
            tensors[name][:] = np.eye(*tensors[name].shape, dtype=np.float32)
    return tensors


def test_drafts_are_right_where_an_id_says_what_follows(tmp_path: Path) -> None:
    path = write_model(tmp_path / "model.gguf", n_vocab=40, change=repeats, final_logit_softcapping=0.0)
    draft = write_assistant(tmp_path / "draft.gguf", n_vocab=40, change=repeats)
    with graphml.load(path, threads=1, draft_model=draft) as model, model.session() as session:
        ids = [token.id for token in session.generate([3, 7], SamplingParams(), 30)]
        assert ids == [7] * 30
        assert session.stats.n_drafted > 10
        assert session.stats.n_accepted == session.stats.n_drafted


def test_an_assistant_reads_caches_of_all_types(paths: tuple[Path, Path]) -> None:
    """Of layers, and as transforms."""
    path, draft = paths
    rows = []
    for kv in ("f32", "bf16,1=q8_0-plain/f16", "bf16,1=q8_0"):
        with graphml.load(path, threads=1, kv=kv, n_batch=16, draft_model=draft) as model:
            text = Followed(model)
            text.read(PROMPT * 5)
            rows.append(text.behind(4, text.row)[0])
    assert 0 < nmse(rows[1], rows[0]) < 1e-3
    assert 0 < nmse(rows[2], rows[0]) < 1e-3


def refused(path: Path, draft: Path, error: type[Exception] = UsageError) -> str:
    with pytest.raises(error) as raised:
        graphml.load(path, threads=1, draft_model=draft).close()
    return str(raised.value)


def test_an_assistant_that_does_not_fit_is_refused(paths: tuple[Path, Path], tmp_path: Path) -> None:
    model_path, _ = paths

    def draft(error: type[Exception] = UsageError, **keys: Any) -> str:
        said = {key.replace("__", "."): value for key, value in keys.items()}
        return refused(model_path, write_assistant(tmp_path / "draft.gguf", **said), error)

    assert "hidden rows of 48 numbers; " in draft(embedding_length_out=48)
    assert "a layer with window 16; the" in draft(attention__sliding_window=16)
    assert "at least 2 tokens" in draft(ArchitectureError, attention__sliding_window=1)
    assert "keys by 4 heads of 24 numbers" in draft(
        attention__key_length_swa=24, attention__value_length_swa=24
    )
    assert "wanted 16, as that of keys" in draft(ArchitectureError, attention__value_length_swa=24)
    assert "keys by 3 heads of 16 numbers" in draft(attention__head_count=3)
    assert "all 3 layers" in draft(ArchitectureError, nextn_predict_layers=2)
    assert "of 80 ids and 48 numbers" in draft(n_vocab=90)
    missing = draft(ArchitectureError, without=["nextn.post_projection.weight"])
    assert "tensor nextn.post_projection.weight is wanted" in missing
    for key in ("embedding_length_out", "attention.sliding_window", "attention.sliding_window_pattern"):
        assert key in draft(graphml.errors.GraphmlError, without=[key])

    def more(tensors: dict[str, Floats]) -> dict[str, Floats]:
        return {**tensors, "masked_embd_ordering": np.zeros(8, np.float32), "other": np.zeros(8, np.float32)}

    assert "has; got other besides" in draft(change=more)

    def with_ids(tensors: dict[str, Floats]) -> dict[str, Any]:
        return {**tensors, "d2t": np.arange(80, dtype=np.int64)}

    assert "has; got d2t besides" in draft(change=with_ids)


def test_a_model_of_another_kind_is_refused(tmp_path: Path, paths: tuple[Path, Path]) -> None:
    path = write_model(tmp_path / "m.gguf", **{"attention.sliding_window": 24})
    assert "windows of layers of" in refused(path, paths[1])


def test_an_assistant_keeps_nothing(drafted: graphml.Model) -> None:
    assert head_cell_bytes(drafted.executor) == 0


def test_kinds_of_drafts_want_their_files(drafted: graphml.Model) -> None:
    for kind, why in (("draft", "one for spec_type mtp"), ("eagle3", "it has another")):
        with drafted.session() as session, pytest.raises(UsageError, match=why):
            session.generate([1], SamplingParams(spec_type=kind))
