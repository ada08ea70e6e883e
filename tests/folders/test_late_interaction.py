"""Folders of late-interaction models, held to what PyLate computes (`late_records`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphml
from graphml.errors import ArchitectureError, GraphmlError, UsageError, WeightsError
from graphml.loading.open_file import open_path
from tests.cli.test_commands import graphml_command
from tests.encoder_records import write
from tests.folders.test_encoder_folders import folder as encoder_folder
from tests.late_records import CUT, CUT_QUERY, DOCUMENTS, FOLDER, PYLATE, QUERY, RECORDS, about

NEAR = 2e-6
CONFIG, ARTIFACT, VOCABULARY = "config_sentence_transformers.json", "artifact.metadata", "tokenizer.json"


def folder(path: Path, name: str, **changed: Any) -> Path:
    """The folder of a record, with other fields of files, by their names; None leaves a field out."""
    files, tensors, _ = about(name)
    for file, fields in changed.items():
        whole = files[file]
        whole = {**(json.loads(whole) if isinstance(whole, str) else whole), **fields}
        files[file] = json.dumps({key: value for key, value in whole.items() if value is not None})
    return write(path / name, files, tensors)


def opened(path: Path, backend: str = "reference") -> graphml.Model:
    return graphml.load(path, backend=backend, kv="f32", quant="fp32", threads=1)


def test_there_is_a_record_of_each() -> None:
    assert sorted(RECORDS) == sorted(path.stem for path in FOLDER.glob("*.npz"))


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("name", RECORDS)
def test_rows_and_scores_are_those_of_pylate(name: str, backend: str, tmp_path: Path) -> None:
    arrays = about(name)[2]
    with opened(folder(tmp_path, name), backend) as model:
        for key, query, documents in (("", QUERY, DOCUMENTS), ("cut_", CUT_QUERY, [CUT])):
            cut = {"truncate": bool(key)}
            (asked,) = model.token_rows(query, query=True, **cut)
            assert asked.shape == arrays[f"{key}query"].shape
            assert np.abs(asked - arrays[f"{key}query"]).max() <= NEAR
            answers = model.token_rows(documents, **cut)
            assert [len(answer) for answer in answers] == arrays[f"{key}counts"].tolist()
            assert np.abs(np.concatenate(answers) - arrays[f"{key}documents"]).max() <= NEAR
            scores = model.rank(query, documents, **cut)
            assert scores.shape == (len(documents), 1)
            np.testing.assert_allclose(scores[:, 0], arrays[f"{key}scores"], rtol=2e-6)
        assert model.rank(QUERY, DOCUMENTS[0]).shape == (1,)
        queries = model.token_rows([QUERY, "the mat"], query=True)  # of other numbers of unseen tokens
        assert np.abs(queries[0] - arrays["query"]).max() <= NEAR


def test_records_differ_in_what_they_are_about() -> None:
    """Whether expansions are seen changes the rows of a query's other tokens; a skiplist leaves rows out."""
    expanded, attended = about("expanded")[2], about("attended")[2]
    assert expanded["query"].shape == attended["query"].shape == (14, 16)
    assert np.abs(expanded["query"][:5] - attended["query"][:5]).max() > 1e-3
    assert len(about("short")[2]["query"]) != 14
    assert expanded["counts"].sum() > attended["counts"].sum() > len(DOCUMENTS)


def test_longer_texts_are_refused_unless_they_may_be_cut(tmp_path: Path) -> None:
    with opened(folder(tmp_path, "expanded")) as model:
        with pytest.raises(UsageError, match=r"query: wanted at most 13 tokens; got \d+; truncate cuts them"):
            model.rank(CUT_QUERY, DOCUMENTS)
        with pytest.raises(UsageError, match=r"texts\[1\]: wanted at most 23 tokens; got \d+; truncate cuts"):
            model.rank(QUERY, [DOCUMENTS[0], CUT])


def test_rows_of_tokens_go_through_the_dense_layer(tmp_path: Path) -> None:
    path = folder(tmp_path, "unprefixed")
    with opened(path) as model:
        rows = model.embed_tokens(DOCUMENTS[1])
        assert rows.shape[1] == 16
        ids = model.encode(DOCUMENTS[1])
        kept = [id not in set(model.metadata["bert.late_interaction.skipped_ids"]) for id in ids]
        unit = rows[kept] / np.linalg.norm(rows[kept], axis=1, keepdims=True)
        np.testing.assert_allclose(model.token_rows(DOCUMENTS[1])[0], unit, atol=1e-6)
        with pytest.raises(UsageError, match="says none"):
            model.embed("a cat")


def test_a_model_of_another_kind_has_no_such_rows(tmp_path: Path) -> None:
    other = pytest.raises(
        UsageError, match="wanted a model of late interaction, such as ColBERT's; see embed"
    )
    with opened(encoder_folder(tmp_path, "mean")) as model, other:
        model.token_rows("a cat")
    pairs = pytest.raises(UsageError, match=r"truncate: .*a pair is never cut")
    with opened(encoder_folder(tmp_path, "pairs")) as model, pairs:
        model.rank("a", ["b"], truncate=True)


def test_the_command_ranks_texts(tmp_path: Path) -> None:
    path, arrays = folder(tmp_path, "expanded"), about("expanded")[2]
    options = [path, "--backend", "reference", "--kv", "f32", "--quant", "fp32", "--json"]
    texts = [text for text in DOCUMENTS if text]
    wanted = {text: score for text, score in zip(DOCUMENTS, arrays["scores"], strict=True) if text}
    results = json.loads(graphml_command("rerank", *options, "-q", QUERY, *texts).stdout)["results"]
    assert [result["text"] for result in results] == sorted(wanted, key=lambda text: -wanted[text])
    assert {result["text"]: pytest.approx(result["score"], abs=1e-4) for result in results} == wanted
    said = graphml_command("rerank", *options, "-q", CUT_QUERY, CUT, code=2).stderr
    assert "query: wanted at most 13 tokens" in said
    results = json.loads(graphml_command("rerank", *options, "--truncate", "-q", CUT_QUERY, CUT).stdout)
    assert results["results"][0]["score"] == pytest.approx(arrays["cut_scores"][0], abs=1e-4)


WRONG: list[tuple[str, str, dict[str, Any], str]] = [
    ("expanded", CONFIG, {"query_prefix": "[X] "}, r"query_prefix: wanted a token of tokenizer\.json; got"),
    ("expanded", CONFIG, {"query_length": 3}, "query_length: wanted 4 to 1048576; got 3"),
    ("expanded", CONFIG, {"document_length": "long"}, "document_length: wanted int; got 'long'"),
    ("expanded", CONFIG, {"do_query_expansion": 1}, "do_query_expansion: wanted bool; got '1'"),
    ("expanded", CONFIG, {"skiplist_words": [1]}, "skiplist_words: wanted at most 4096 texts"),
    ("expanded", CONFIG, {"prompts": {"query": "x"}}, "prompts: wanted none beside the prefixes of PyLate"),
    ("expanded", VOCABULARY, {"model": {}}, r"tokenizer\.json"),
    ("expanded", "1_Dense/config.json", {"in_features": 31}, "in_features: wanted the model's 32; got 31"),
    ("expanded", "1_Dense/config.json", {"use_residual": True}, "use_residual"),
    ("stanford", ARTIFACT, {"query_token_id": "[X]"}, "query_prefix: wanted a token"),
    ("stanford", ARTIFACT, {"similarity": "l2"}, "similarity: wanted cosine; got 'l2'"),
    ("stanford", ARTIFACT, {"query_maxlen": True}, "query_length: wanted int; got 'True'"),
]


@pytest.mark.parametrize(("name", "file", "fields", "message"), WRONG)
def test_what_would_be_left_out_or_contradicts_is_refused(
    name: str, file: str, fields: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(GraphmlError, match=message) as raised:
        open_path(folder(tmp_path, name, **{file: fields}))
    assert isinstance(raised.value, ArchitectureError | WeightsError)


def test_defaults_are_those_of_pylate(tmp_path: Path) -> None:
    """PyLate's own punctuation, lengths and expansion where a folder does not say them."""
    nothing = dict.fromkeys(PYLATE["expanded"][2])
    files = folder(tmp_path, "expanded", **{CONFIG: nothing})
    with open_path(files) as file:
        late = {key: file.metadata[f"bert.late_interaction.{key}"]
                for key in ("query_length", "document_length", "attends")}  # fmt: skip
        assert late == {"query_length": 32, "document_length": 180, "attends": False}
        assert file.metadata["bert.late_interaction.expansion_id"] >= 0


def test_an_hf_colbert_wants_its_projection(tmp_path: Path) -> None:
    files, tensors, _ = about("stanford")
    path = write(tmp_path / "x", files, {name: of for name, of in tensors.items() if name != "linear.weight"})
    with pytest.raises(WeightsError, match=r"wanted the tensor linear\.weight of an HF_ColBERT"):
        open_path(path)
