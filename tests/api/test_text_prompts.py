"""Prompts before texts: by the model's family where its file states none, free ones, and none unasked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from graphml_models import bert

import graphml
from graphml.api.text_prompts import FAMILIES, family_of
from tests.api.test_embedding import TEXTS, write
from tests.looped import looped

NAMES = {
    "nomic-embed-text-v1.5": "nomic-embed-text", "Nomic Embed Text V2 Moe": "nomic-embed-text",
    "multilingual-e5-large-instruct": "e5-instruct", "e5-mistral-7b-instruct": "e5-instruct",
    "Multilingual E5 Base": "e5", "e5-small-v2": "e5", "bge-small-en-v1.5": "bge-en", "bge-m3": "bge-m3",
    "bge-large-zh-v1.5": "bge-zh", "Bge Small Zh": "bge-zh",
    "mxbai-embed-large-v1": "mxbai-embed-large", "snowflake-arctic-embed-m": "snowflake-arctic-embed",
    "Snowflake Arctic Embed M v1.5": "snowflake-arctic-embed",
    "snowflake-arctic-embed-m-long": "snowflake-arctic-embed",
    "snowflake-arctic-embed-l-v2.0": "snowflake-arctic-embed-v2",
    "Qwen3 Embedding 0.6B": "qwen3-embedding", "gte-Qwen2-1.5B-instruct": "gte-qwen2",
    "Embeddinggemma 300M": "embeddinggemma", "embeddinggemma-300m-qat": "embeddinggemma",
    "jina-embeddings-v4-text-retrieval": "jina-embeddings-v4",
}  # fmt: skip
UNKNOWN = ("", "jina-embeddings-v3", "snowflake-arctic-embed-m-v3", "snowflake-arctic-instruct", "gte-base",
           "bge-reranker-base", "Qwen3 0.6B", "gemma-3-270m", "somee5-base", "e5-basement")  # fmt: skip


def test_a_family_is_known_by_the_names_that_files_have() -> None:
    assert {name: getattr(family_of(name), "name", None) for name in NAMES} == NAMES
    assert [name for name in UNKNOWN if family_of(name) is not None] == []
    assert {of.name for of in FAMILIES} == set(NAMES.values())


def test_each_family_has_both_prompts_and_a_source() -> None:
    for of in FAMILIES:
        assert {"query", "document"} <= set(of.prompts)
        assert of.source.startswith("https://huggingface.co/")
    assert len({of.name for of in FAMILIES}) == len(FAMILIES)


def named(path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> Path:
    """A BERT whose file has this name."""
    (model,) = bert.sample("bert")
    model = replace(model, metadata={**model.metadata, "general.name": name})
    monkeypatch.setattr(bert, "sample", lambda _: [model])
    return write(path / "model.gguf", pooling_type=1)


@pytest.fixture
def e5(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[graphml.Model]:
    with graphml.load(named(tmp_path, monkeypatch, "E5 Small v2"), "reference", kv="f32") as model:
        yield model


def test_prompts_of_a_family_stand_before_texts_that_ask_for_them(e5: graphml.Model) -> None:
    plain = e5.embed(TEXTS[:3])
    for name, text in (("query", "query: "), ("document", "passage: ")):
        rows = e5.embed(TEXTS[:3], prompt_name=name)
        np.testing.assert_allclose(rows, e5.embed([text + each for each in TEXTS[:3]]), atol=1e-6)
        assert np.abs(rows - plain).max() > 1e-4
        np.testing.assert_array_equal(rows, e5.embed(TEXTS[:3], prompt=text))
    np.testing.assert_array_equal(e5.embed(TEXTS[:3], prompt=""), plain)


@looped(("asked", "said"), [
    ({"prompt_name": "passage"}, "prompt_name: .*wanted one of 'query', 'document', of e5; got 'passage'"),
    ({"prompt_name": "query", "prompt": "x"}, "prompt: wanted it or the name 'query', not both; got 'x'"),
    ({"prompt": 3}, "prompt: wanted text, got int"),
])  # fmt: skip
def test_prompts_that_there_are_not_are_refused(e5: graphml.Model, asked: dict[str, str], said: str) -> None:
    with pytest.raises(graphml.UsageError, match=said):
        e5.embed("a cat", **asked)


def test_a_file_of_no_known_family_refuses_and_names_those_that_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with graphml.load(named(tmp_path, monkeypatch, "My Model"), "reference", kv="f32") as model:
        refused = (
            "its file has none, and its name, 'My Model', is of none of the families nomic-embed-text, e5-"
        )
        with pytest.raises(graphml.UsageError, match=refused):
            model.embed("a cat", prompt_name="query")
