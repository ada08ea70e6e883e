"""`Model.embed`, `embed_tokens`, `rank`: texts to rows, on a tiny BERT with a vocabulary and on a decoder."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from graphml_models import bert
from typer.testing import CliRunner

import graphml
from graphml.api.text_rows import default_pooling, normalized
from graphml.cli.main import app
from graphml.inspect.compare.observe import observe
from tests import golden, tiny_model
from tests.looped import looped
from tests.sample_models import kind_of

WORDS = ("a", "the", "cat", "dog", "sat", "lay", "on", "in", "mat")
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"\u2581{word}" for word in WORDS), "s", "."]
ROLES = {"padding": 0, "unknown": 1, "cls": 2, "bos": 2, "seperator": 3, "eos": 3}
TEXTS = ["a cat sat on the mat", "the dogs lay in the mat.", "cat", "a dog", "the mats", "in", "on a mat",
         "sat.", "dogs and cats", "a a a a a"]  # fmt: skip


def write(path: Path, scores: bool = False, **keys: int) -> Path:
    """The sample of BERT with a vocabulary of word pieces, and a matrix that scores pairs."""
    model = bert.sample("bert")[0]
    if scores:
        model = replace(model, tensors={**model.tensors, "cls.output.weight": (1, 64)})
    model = replace(
        model, metadata={**model.metadata, **{f"bert.{key}": value for key, value in keys.items()}}
    )
    writer = gguf.GGUFWriter(path, "bert")
    for key, value in model.metadata.items():
        writer.add_key_value(key, value, gguf.GGUFValueType[kind_of(value)])
    writer.add_tokenizer_model("bert")
    writer.add_token_list(PIECES)
    for role, token in ROLES.items():
        writer.add_uint32(f"tokenizer.ggml.{role}_token_id", token)
    for name, shape in model.tensors.items():
        writer.add_tensor(name, golden.weights(name, shape[::-1], seed=7))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[graphml.Model]:
    path = write(tmp_path_factory.mktemp("bert") / "bert.gguf", pooling_type=1)
    with graphml.load(path, "reference", kv="f32", n_batch=24) as model:
        yield model


def test_many_texts_are_each_alone(model: graphml.Model) -> None:
    together = model.embed(TEXTS)
    assert (together.shape, together.dtype) == ((len(TEXTS), 64), np.float32)
    for text, row in zip(TEXTS, together, strict=True):
        np.testing.assert_allclose(model.embed(text), row, rtol=1e-5, atol=1e-6)
        assert (model.embed(text).shape, model.embed([text]).shape) == (row.shape, (1, len(row)))
    assert len({row.tobytes() for row in together}) == len(TEXTS)


@pytest.mark.parametrize(("pooling", "pool"), [
    (None, lambda x: x.mean(0)), ("cls", lambda x: x[0]), ("last", lambda x: x[-1])
])  # fmt: skip
def test_pooling_of_the_rows_of_tokens(model: graphml.Model, pooling: str | None, pool: object) -> None:
    ids = model.encode(TEXTS[0])
    assert (ids[0], ids[-1]) == (2, 3)
    rows = model.embed_tokens(TEXTS[0])
    assert rows.shape == (len(ids), 64)
    np.testing.assert_allclose(model.embed(TEXTS[0], pooling, False), pool(rows), rtol=1e-5, atol=1e-6)  # type: ignore[operator]


def test_rows_of_length_one(model: graphml.Model) -> None:
    plain, short = model.embed(TEXTS, normalize=False), model.embed(TEXTS)
    np.testing.assert_allclose(np.linalg.norm(short, axis=1), 1, rtol=1e-6)
    np.testing.assert_allclose(short * np.linalg.norm(plain, axis=1)[:, None], plain, rtol=1e-5, atol=1e-6)


def test_the_first_numbers_of_a_row_have_length_one_again(model: graphml.Model) -> None:
    plain = model.embed(TEXTS, normalize=False)
    short = model.embed(TEXTS, dimensions=16)
    assert short.shape == (len(TEXTS), 16)
    wanted = plain[:, :16] / np.linalg.norm(plain[:, :16], axis=1, keepdims=True)
    np.testing.assert_allclose(short, wanted, rtol=1e-5, atol=1e-6)
    assert model.embed(TEXTS[0], dimensions=16).shape == (16,)
    np.testing.assert_allclose(model.embed(TEXTS, normalize=False, dimensions=16), plain[:, :16], rtol=1e-5)
    np.testing.assert_allclose(model.embed(TEXTS, dimensions=64), model.embed(TEXTS), rtol=1e-6)
    assert model.embed([], dimensions=16).shape[0] == 0


@looped(
    ("dimensions", "texts"), [(65, "cat"), (0, "cat"), (-1, []), (1.5, "cat"), (True, "cat"), ("8", "cat")]
)
def test_dimensions_that_a_row_has_not_are_refused(
    model: graphml.Model, dimensions: object, texts: object
) -> None:
    said = r"dimensions: wanted (1 to 64, the numbers of a row|at least 1); got"
    with pytest.raises(graphml.UsageError, match=said):
        model.embed(texts, dimensions=dimensions)  # type: ignore[call-overload]  # what the test is about


def test_no_texts_give_no_rows(model: graphml.Model) -> None:
    assert model.embed([]).shape[0] == 0


@looped(("texts", "pooling", "said"), [
    ("cat", "median", "pooling: wanted one of none, mean, cls, last, rank; got 'median'"),
    ("cat", "none", "which gives no row for a text as a whole"),
    (["cat", "a " * 30], None, r"texts\[1\]: wanted 1 to 24 tokens \(n_batch\); got 32"),
    (["cat", 3], None, r"texts\[1\]: wanted text, got int"),
])  # fmt: skip
def test_what_cannot_be_is_told(model: graphml.Model, texts: object, pooling: str, said: str) -> None:
    with pytest.raises(graphml.UsageError, match=said):
        model.embed(texts, pooling)  # type: ignore[arg-type]  # what the test is about


def test_a_decoder_whose_file_says_nothing_takes_the_last_row(tmp_path: Path) -> None:
    with graphml.load(tiny_model.write(tmp_path / "tiny.gguf"), "reference") as decoder:
        assert default_pooling(decoder.executor) == "last"
        assert np.array_equal(decoder.embed("hello world"), decoder.embed("hello world", "last"))
        assert not np.array_equal(decoder.embed("hello world"), decoder.embed("hello world", "mean"))


def test_an_encoder_has_no_sessions(model: graphml.Model) -> None:
    with pytest.raises(graphml.UsageError, match="bert gives embeddings, no logits: see embed"):
        model.session()
    with pytest.raises(graphml.UsageError, match="wanted a model with logits; bert gives"):
        observe(model.executor, [2, 5, 3])
    with pytest.raises(graphml.ArchitectureError, match="rank wants a classifier"):
        model.embed("cat", "rank")


def test_a_decoder_embeds_by_what_its_logits_are_made_of(tmp_path: Path) -> None:
    path = tiny_model.write(tmp_path / "tiny.gguf")
    with graphml.load(path, "reference", kv="f32") as model:
        rows, ids = model.embed_tokens("hello world"), model.encode("hello world")
        output = model.executor.weights["output.weight"]
        logits = model.session().eval(ids, all_logits=True)
        np.testing.assert_allclose(rows @ output.T, logits, rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(model.embed("hello world", "last", False), rows[-1], rtol=1e-4, atol=1e-5)
        with pytest.raises(graphml.UsageError, match="which gives no row"):
            model.embed("hello world", "none")


def test_ranking_pairs(tmp_path: Path) -> None:
    with graphml.load(
        write(tmp_path / "rank.gguf", scores=True, pooling_type=4), "reference", kv="f32"
    ) as model:
        scores = model.rank("the cat", TEXTS)
        assert scores.shape == (len(TEXTS), 1)
        assert model.tokenizer is not None
        pair = model.tokenizer.pair("the cat", "a dog")
        assert [PIECES[id] for id in pair] == [
            "[CLS]", "\u2581the", "\u2581cat", "[SEP]", "\u2581a", "\u2581dog", "[SEP]"
        ]  # fmt: skip
        np.testing.assert_allclose(model.rank("the cat", TEXTS[0]), scores[0], rtol=1e-5, atol=1e-6)
        assert abs(model.rank("the dog", [TEXTS[0]])[0, 0] - scores[0, 0]) > 1e-4
        with pytest.raises(graphml.UsageError, match="dimensions: wanted none beside the scores of a class"):
            model.embed("a cat", dimensions=1)


def test_the_command(model: graphml.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    common = [str(model.path), "--backend", "reference", "--kv", "f32"]
    done = CliRunner().invoke(app, ["embed", *common, "-p", TEXTS[0], "--text", TEXTS[1]])
    assert done.exit_code == 0, done.output
    rows = np.array([[float(x) for x in line.split()] for line in done.stdout.splitlines()])
    np.testing.assert_allclose(rows, model.embed(TEXTS[:2]), rtol=1e-4, atol=1e-5)
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    done = CliRunner().invoke(app, ["embed", *common, "--json"], input="cat\n\na dog\n")
    found = json.loads(done.stdout)
    assert (found["pooling"], found["embd_normalize"], len(found["embeddings"])) == ("mean", 2, 2)
    np.testing.assert_allclose(found["embeddings"], model.embed(["cat", "a dog"]), atol=1e-5)


@pytest.mark.parametrize(("kind", "length"), [
    (-1, None), (0, lambda x: np.abs(x).max() / 32760), (1, lambda x: np.abs(x).sum()),
    (2, np.linalg.norm), (200, lambda x: np.abs(x).max()),
])  # fmt: skip
def test_the_command_divides_by_the_norm_that_is_asked_for(
    model: graphml.Model, kind: int, length: Callable[[Any], float] | None
) -> None:
    """As llama-embedding numbers them; a high power of small numbers is still a number."""
    common = [str(model.path), "--backend", "reference", "--kv", "f32", "--json"]
    done = CliRunner().invoke(app, ["embed", *common, f"--embd-normalize={kind}", "-p", TEXTS[0]])
    (row,) = np.array(json.loads(done.stdout)["embeddings"])
    plain = model.embed(TEXTS[0], normalize=False)
    np.testing.assert_allclose(row, plain if length is None else plain / length(plain), rtol=0.02)
    zeros = np.zeros((1, 4), np.float32)
    assert np.array_equal(normalized(zeros, kind), zeros)
    assert np.abs(normalized(np.full((1, 4), 1e-9, np.float32), 200)).max() > 0.9


@pytest.mark.parametrize(("more", "said"), [
    ([], "wanted -p TEXT, or a text on each line of stdin; got nothing"),
    (["-p", "cat", "--query", "dog", "--embd-normalize", "2"], "--embd-normalize: wanted none beside"),
    (["-p", "cat", "--query", "dog", "--pooling", "cls"], "--query: wanted no --pooling but rank"),
])  # fmt: skip
def test_what_the_command_cannot_do(model: graphml.Model, more: list[str], said: str) -> None:
    done = CliRunner().invoke(app, ["embed", str(model.path), "--backend", "reference", *more], input="")
    assert done.exit_code == 2
    assert said in done.stderr


def test_the_command_keeps_so_many_numbers_behind_a_prompt(model: graphml.Model) -> None:
    common = [str(model.path), "--backend", "reference", "--kv", "f32", "-p", TEXTS[0], "-p", TEXTS[1]]
    asked = ["--dimensions", "16", "--prompt", "the "]
    done = CliRunner().invoke(app, ["embed", *common, *asked, "--json"])
    wanted = model.embed(TEXTS[:2], prompt="the ", dimensions=16)
    np.testing.assert_allclose(json.loads(done.stdout)["embeddings"], wanted, atol=1e-5)
    done = CliRunner().invoke(app, ["embed", *common, *asked, "--similarity"])
    cosine = float(done.stdout.split()[1])
    assert cosine == pytest.approx(float(wanted[0] @ wanted[1]), abs=1e-3)


def test_a_deterministic_model_s_rows_are_the_same_bits_in_any_company() -> None:
    texts = [f"Once upon a time there was a {word} that" for word in ("cat", "dog")] * 20
    with graphml.load("stories260k", "cpu", deterministic=True) as model:
        together = model.embed(texts)
        alone = np.stack([model.embed(text) for text in texts[:2]])
    assert (together[:2] == alone).all()


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_rows_that_are_no_numbers_are_an_error(
    number: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the texts that meet them alone: a file of rows would be full of NaN."""

    def damaged(name: str, shape: tuple[int, ...], seed: int) -> Any:
        values = golden_weights(name, shape, seed)
        if name == "token_embd.weight":
            values[PIECES.index("\u2581dog"), 3] = number
        return values

    golden_weights = golden.weights
    monkeypatch.setattr(golden, "weights", damaged)
    path = write(tmp_path / "damaged.gguf", pooling_type=1)
    with graphml.load(path, threads=1) as model:
        assert np.isfinite(model.embed(["a cat", "a mat"])).all()
        for call in (model.embed, model.embed_tokens):
            with pytest.raises(
                graphml.WeightsError, match=r"damaged.gguf: the model's rows of a text are no n"
            ):
                call("a dog")
        with pytest.raises(graphml.WeightsError, match="cache's dtype"):
            model.embed(["a cat", "a dog", "a mat"])
