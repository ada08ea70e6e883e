"""`graphml tokenize` and `graphml rerank`: what Python's methods give, as lines and as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import graphml
from tests.api.test_embedding import write
from tests.cli.test_commands import graphml_command
from tests.encoder_records import TEXTS, about
from tests.folders.test_encoder_folders import NEAR, folder
from tests.stories import STORIES

TEXT = "Once upon a time"
IDS = [1, 403, 407, 261, 378]


def test_the_tokens_of_a_text() -> None:
    with graphml.load(STORIES, "reference") as model:
        assert model.encode(TEXT) == IDS
    lines = graphml_command("tokenize", "stories260k", TEXT).stdout.splitlines()
    assert lines == ["  1  '<s>'", "403  ' Once'", "407  ' upon'", "261  ' a'", "378  ' time'"]
    assert json.loads(graphml_command("tokenize", STORIES, TEXT, "--ids").stdout) == IDS
    listed = json.loads(graphml_command("tokenize", "-m", STORIES, TEXT, "--json").stdout)
    assert listed["n_tokens"] == len(listed["tokens"]) == 5
    assert listed["tokens"][1] == {"id": 403, "text": " Once", "bytes": list(b" Once")}


def test_a_file_and_stdin_are_texts_too(tmp_path: Path) -> None:
    (tmp_path / "text").write_text(TEXT)
    of_file = graphml_command("tokenize", STORIES, "--ids", "-f", tmp_path / "text").stdout
    assert json.loads(of_file) == IDS
    assert json.loads(graphml_command("tokenize", STORIES, "--ids", stdin=TEXT).stdout) == IDS


def test_control_tokens_are_text_where_that_is_asked_for() -> None:
    plain = graphml_command("tokenize", STORIES, "<s>a", "--ids", "--no-special").stdout
    assert 1 not in json.loads(plain)
    assert graphml_command("tokenize", STORIES, "--decode", "[1, 403, 407]").stdout.strip() == "<s> Once upon"


def test_texts_are_embedded_behind_a_prompt_of_the_folder(tmp_path: Path) -> None:
    path, arrays = folder(tmp_path, "mean"), about("mean")[2]
    options = [
        "embed",
        path,
        *TEXTS[:2],
        "--backend",
        "reference",
        "--kv",
        "f32",
        "--quant",
        "fp32",
        "--json",
    ]
    for further, name in (((), "embeddings"), (("--prompt-name", "document"), "documents")):
        rows = json.loads(graphml_command(*options, *further).stdout)["embeddings"]
        assert np.abs(np.asarray(rows) - arrays[name][:2]).max() <= NEAR


def test_texts_are_ranked(tmp_path: Path) -> None:
    path = write(tmp_path / "rank.gguf", scores=True, pooling_type=4)
    texts = ["hello", "hello world", "world world hello"]
    with graphml.load(path, "reference", kv="f32") as model:
        scores = [float(row[0]) for row in model.rank("world", texts)]
    best = sorted(range(3), key=lambda i: -scores[i])
    options = ["rerank", path, "-q", "world", "--backend", "reference", "--kv", "f32"]
    lines = graphml_command(*options, stdin="\n".join(texts)).stdout.splitlines()
    assert [line.split("\t")[1:] for line in lines] == [[str(i), texts[i]] for i in best]
    listed = json.loads(graphml_command(*options, "-n", 1, "--json", stdin="\n".join(texts)).stdout)
    (first,) = listed["results"]
    assert (first["index"], first["text"]) == (best[0], texts[best[0]])
    assert first["score"] == pytest.approx(scores[best[0]], abs=1e-6)
    by_place = ["rerank", path, "world", *texts, "--backend", "reference", "--kv", "f32"]
    assert graphml_command(*by_place).stdout.splitlines() == lines
    (tmp_path / "texts.txt").write_text("\n".join(["", *texts, ""]))
    for option in ("-f", "--documents"):
        assert graphml_command(*options, option, tmp_path / "texts.txt").stdout.splitlines() == lines


def test_lines_end_with_line_feeds_alone(tmp_path: Path) -> None:
    """As those of files: of other letters that Unicode ends lines with, one text would become two."""
    options = ["embed", "stories260k", "--backend", "reference", "--json"]
    texts = ["one\u2028two", "three\x0bfour", "five\x0csix\x85seven", "eight"]
    piped = "\ufeff" + "\r\n".join(texts) + "\n"
    rows = json.loads(graphml_command(*options, stdin=piped).stdout)["embeddings"]
    with graphml.load("stories260k", "reference") as model:
        assert rows == pytest.approx(model.embed(texts), abs=1e-5)
    path = write(tmp_path / "rank.gguf", scores=True, pooling_type=4)
    (tmp_path / "texts.txt").write_text(piped, encoding="utf-8")
    options = ["rerank", path, "-q", "world", "--backend", "reference", "--json"]
    for more in ({"stdin": piped}, {}):
        words = [] if more else ["-f", tmp_path / "texts.txt"]
        results = json.loads(graphml_command(*options, *words, **more).stdout)["results"]
        assert {result["text"] for result in results} == set(texts)


def test_embeddings_are_printed_in_the_forms_of_llama_embedding() -> None:
    options = ["embed", "stories260k", "once", "twice", "--backend", "reference"]
    rows = json.loads(graphml_command(*options, "--json").stdout)["embeddings"]
    data = [{"object": "embedding", "index": i, "embedding": row} for i, row in enumerate(rows)]

    def form(name: str) -> str:
        return graphml_command(*options, "--embd-output-format", name).stdout

    assert json.loads(form("json")) == {"object": "list", "data": data}
    cosines = json.loads(form("json+"))["cosineSimilarity"]
    np.testing.assert_allclose(cosines, np.asarray(rows) @ np.transpose(rows), atol=1e-6)
    assert json.loads(form("array")) == rows
    assert form("raw") == graphml_command(*options).stdout
