"""Folders of sentence-transformers behind a server: prompts, lengths, kinds of tokens of pairs."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from graphml.server.options.server_options import ServerOptions
from tests.encoder_records import QUERY, TEXTS, about
from tests.folders import test_late_interaction as late
from tests.folders.test_encoder_folders import NEAR, folder, opened
from tests.server.running_server import Running, running


def rows(server: Running, texts: list[object]) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    answer = server.post("/v1/embeddings", {"input": texts, "model": "x"}).json()
    return np.asarray([entry["embedding"] for entry in answer["data"]])


def test_the_default_prompt_is_before_texts_and_not_before_ids(tmp_path: Path) -> None:
    wanted = about("mean")[2]
    with opened(folder(tmp_path, "mean")) as model:
        ids = [model.encode(text) for text in TEXTS]
        mixed = [2, "the cat", 3]  # a prompt of ids and a text
        with running(ServerOptions(parallel=2, embeddings_only=True), model) as server:
            assert np.abs(rows(server, [*TEXTS]) - wanted["embeddings"]).max() <= NEAR
            assert np.abs(rows(server, [*ids]) - wanted["documents"]).max() <= NEAR
            same = [2, *model.encode("the cat", add_special=False), 3]
            assert np.abs(np.diff(rows(server, [mixed, same]), axis=0)).max() <= NEAR
            long = server.post("/v1/embeddings", {"input": "cat " * 30, "model": "x"})
            assert long.status_code == 400
            assert "at most 24" in long.text


def test_pairs_are_scored_with_their_kinds(tmp_path: Path) -> None:
    options = ServerOptions(parallel=2, reranking=True)
    with opened(folder(tmp_path, "pairs")) as model, running(options, model) as server:
        answer = server.post("/v1/rerank", {"query": QUERY, "documents": TEXTS, "model": "x"}).json()
    scores = {entry["index"]: entry["relevance_score"] for entry in answer["results"]}
    wanted = about("pairs")[2]["scores"][:, 0]
    assert max(abs(scores[index] - score) for index, score in enumerate(wanted)) <= NEAR


def test_late_interaction_ranks_texts(tmp_path: Path) -> None:
    options = ServerOptions(parallel=2, reranking=True)
    wanted = late.about("expanded")[2]["scores"]
    body = {"query": late.QUERY, "model": "x"}
    with opened(late.folder(tmp_path, "expanded")) as model, running(options, model) as server:
        answer = server.post("/v1/rerank", {**body, "documents": late.DOCUMENTS}).json()
        scores = {entry["index"]: entry["relevance_score"] for entry in answer["results"]}
        assert max(abs(scores[index] - score) for index, score in enumerate(wanted)) <= 1e-5
        order = [entry["index"] for entry in answer["results"]]
        assert order == sorted(scores, key=lambda index: -scores[index])
        texts = [late.QUERY, *late.DOCUMENTS]
        assert answer["usage"]["prompt_tokens"] == sum(len(model.encode(text)) for text in texts)
        long = server.post("/v1/rerank", {**body, "documents": [late.CUT]})
        assert long.status_code == 400
        assert "texts[0]: wanted at most 23 tokens" in long.text
