"""Sessions of T5: an encoder reads the ids, the decoder answers from its start token; what does not apply."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import graphml
from graphml.errors import BackendError
from graphml.runtime.programs.memory_needed import memory_need
from tests import golden
from tests.cli.test_commands import graphml_command
from tests.golden import nmse
from tests.sample_models import MODELS, kind_of, write_model
from tests.transformers_records import N_GREEDY, RECORDS, SOURCE, read

T5 = [name for name in RECORDS if RECORDS[name].start is not None]
TEXT, OTHER = SOURCE.tolist(), [5, 61, 17, 40, 8]
START = 3  # of the sample "plain"
CLOSE = 1e-10


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("t5") / "t5.gguf", *MODELS["t5-plain"])


@pytest.fixture(scope="module")
def model(path: Path) -> Iterator[graphml.Model]:
    with graphml.load(path, "cpu", threads=2, n_batch=16, kv="f32") as opened:
        yield opened


def greedy(session: graphml.Session, ids: list[int], count: int = N_GREEDY) -> list[int]:
    return [token.id for token in session.generate(ids, max_tokens=count)]


@pytest.mark.parametrize("name", T5)
def test_the_likeliest_ids_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    write_model(tmp_path / "t5.gguf", *MODELS[f"t5-{RECORDS[name].sample}"])
    wanted = read(name, "greedy").tolist()
    with graphml.load(tmp_path / "t5.gguf", "cpu", threads=2, kv="f32") as one, one.session() as session:
        assert greedy(session, TEXT) == wanted
        assert session.tokens == [RECORDS[name].start, *wanted]
        assert session.source == TEXT
        assert session.stats.n_prompt == len(TEXT) + 1
        assert session.stop_reason == "length"


def test_each_text_is_answered_anew(model: graphml.Model) -> None:
    alone = [greedy(model.session(), ids) for ids in (TEXT, OTHER)]
    session = model.session()
    assert [greedy(session, ids) for ids in (TEXT, OTHER, TEXT)] == [*alone, alone[0]]
    session.encode(OTHER)
    assert session.tokens == []
    rest = greedy(session, [], 4) + greedy(session, [], N_GREEDY - 4)
    assert rest == alone[1]


def test_the_source_matters_and_logits_can_be_asked_for_and_rewound(model: graphml.Model) -> None:
    ids = [START, 9, 33, 2, 71]
    first, second = model.session(), model.session()
    first.encode(TEXT)
    second.encode([*TEXT[:-1], (TEXT[-1] + 1) % 80])
    rows = first.eval(ids, all_logits=True)
    assert nmse(second.eval(ids, all_logits=True), rows) > 1e-8
    first.rewind(2)
    assert nmse(first.eval(ids[2:]), rows[-1]) < CLOSE
    first.encode(OTHER)
    assert nmse(first.eval(ids), rows[-1]) > 1e-8
    first.encode(TEXT)
    assert nmse(first.eval(ids), rows[-1]) < CLOSE


def test_a_batch_answers_texts_as_sessions_do(model: graphml.Model) -> None:
    alone = [greedy(model.session(), ids) for ids in (TEXT, OTHER)]
    with model.batch(2, n_ctx=64) as batch:
        found: list[list[int]] = [[], []]
        for i, token in batch.generate([TEXT, OTHER], max_tokens=N_GREEDY):
            found[i].append(token.id)
    assert found == alone


def test_what_does_not_apply_is_said(model: graphml.Model, path: Path) -> None:
    session = model.session()
    with pytest.raises(graphml.UsageError, match="t5 continues what answers a source text"):
        session.eval([START])
    with pytest.raises(graphml.UsageError, match=r"source text of 1 to 16 tokens \(n_batch\); got 17"):
        session.encode([1] * 17)
    with pytest.raises(graphml.UsageError, match=r"source text of 1 to 8 tokens \(n_ctx\); got 9"):
        list(model.session(8).generate([1] * 9))
    with pytest.raises(graphml.UsageError, match="got 0"):
        session.encode([])
    with pytest.raises(graphml.UsageError, match="ids from 0 to 79"):
        session.encode([80])
    with pytest.raises(graphml.UsageError, match="t5 answers texts and embeds none"):
        model._embedded([[1, 2]], "mean")
    with pytest.raises(BackendError, match=r"t5 has an encoder.*one backend for both"):
        graphml.load(path, "cpu,reference")
    assert session.source == session.tokens == []


def test_a_model_without_an_encoder_reads_no_source(tmp_path: Path) -> None:
    write_model(tmp_path / "llama.gguf", *MODELS["llama-plain"])
    with graphml.load(tmp_path / "llama.gguf", "reference") as llama:
        with pytest.raises(graphml.UsageError, match="llama has no encoder"):
            llama.session().encode([1])
        assert llama.session().source == []


def test_memory_counts_what_is_kept_of_the_source(model: graphml.Model) -> None:
    need = memory_need(model.executor, 64)
    heads, layers = 4 * 16, 2 + 3 + 3  # the encoder's, the decoder's, and those of the source
    assert need.cache == 64 * 4 * 2 * heads * layers
    assert model.session(64).sequence().room.runner.state.n_bytes == need.cache


def test_run_answers_a_text(tmp_path: Path) -> None:
    name, sample = MODELS["t5-plain"]
    letters = [chr(ord("a") + i % 26) * (1 + i // 26) for i in range(76)]
    vocabulary = {
        "tokenizer.ggml.model": ("STRING", "t5"),
        "tokenizer.ggml.tokens": ("ARRAY STRING", ["<pad>", "</s>", "<unk>", "▁", *letters]),
        "tokenizer.ggml.scores": ("ARRAY FLOAT32", [0.0] * 3 + [-2.0] * 77),
        "tokenizer.ggml.token_type": ("ARRAY INT32", [3, 3, 2] + [1] * 77),
        "tokenizer.ggml.add_eos_token": ("BOOL", True),
    }
    metadata = {key: (kind_of(value), value) for key, value in sample.metadata.items()} | vocabulary
    tensors = {one: golden.weights(one, shape[::-1], seed=7) for one, shape in sample.tensors.items()}
    path = golden.write_gguf(tmp_path / "t5.gguf", name, metadata, tensors)
    done = graphml_command("run", path, "-p", "ab", "-n", 4, "--json", "--temp", 0, "--backend", "reference")
    found = json.loads(done.stdout)
    with graphml.load(path, "reference") as model:
        assert found["prompt_ids"] == model.encode("ab")
        assert found["prompt_ids"][-1] == 1
        session = model.session()
        tokens = list(session.generate(model.encode("ab"), max_tokens=4))
        assert found["ids"] == [token.id for token in tokens]
        assert found["text"] == "".join(token.piece for token in tokens)
        with pytest.raises(graphml.UsageError, match="t5 answers texts and embeds none"):
            model.embed("ab", pooling="mean")


def test_a_start_token_outside_of_the_vocabulary_is_refused(tmp_path: Path) -> None:
    name, sample = MODELS["t5-plain"]
    metadata = {**sample.metadata, "t5.decoder_start_token_id": 4000}
    changed = type(sample)(sample.name, metadata, sample.tensors)
    write_model(tmp_path / "t5.gguf", name, changed)
    with (
        graphml.load(tmp_path / "t5.gguf", "reference") as model,
        pytest.raises(graphml.UsageError, match="0 to 79, got 4000"),
    ):
        list(model.session().generate(TEXT))


def test_an_error_while_reading_leaves_no_source(
    model: graphml.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = model.session()
    session.encode(TEXT)
    program = type(model.executor.compiled(16, 16, None, 1, encoder=True).program)

    def fail(*arguments: object) -> None:
        raise RuntimeError("no")

    with monkeypatch.context() as patched:
        patched.setattr(program, "run", fail)
        with pytest.raises(RuntimeError, match="no"):
            session.encode(OTHER)
    assert session.source == []
    assert session.sequence().n_source == 0
    with pytest.raises(graphml.UsageError, match="source text"):
        session.eval([START])
    assert greedy(session, TEXT) == greedy(model.session(), TEXT)
    assert np.isfinite(session.eval([START])).all()
