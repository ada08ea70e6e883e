"""Embeddings and reranking: OpenAI's protocol, llama-server's, Jina's and text-embeddings-inference's.

Texts are embedded in steps of the engine, where there is one, and of all requests together. Knows these
protocols; pooling is the model's.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from graphml.api.late_interaction import late_interaction_of, max_sim
from graphml.api.text_prompts import prompt_of
from graphml.api.text_rows import (
    Cancellation,
    chosen_pooling,
    cut_ids,
    cut_rows,
    default_pooling,
    longest_text,
    normalized,
    pair_ids,
)
from graphml.errors import UsageError
from graphml.server.access.text_limits import check_fits
from graphml.server.engine.service import Service
from graphml.server.observing.request_log import ModelOperation
from graphml.server.protocols.request_body import body_of
from graphml.server.requests.prompts import prompts_of
from graphml.server.requests.request_fields import Embeddings, Rerank
from graphml.server.responses.api_errors import ApiError, wrong_field
from graphml.server.responses.event_stream import encode, unless_left
from graphml.server.responses.json_response import joined, json_response, raw_json

Floats = NDArray[np.float32]
T = TypeVar("T")


async def embeddings(service: Service, request: Request) -> Response:
    """`POST /v1/embeddings`."""
    body = await body_of(service, request, Embeddings)
    if body.encoding_format not in (None, "float", "base64"):
        raise wrong_field("encoding_format", "wanted float or base64")
    if _pooling(service) == "none":
        raise ApiError(400, "Pooling type 'none' is not OAI compatible. Please use a different pooling type")
    every, rows = await embedded_texts(service, body, request)
    try:
        rows = [cut_rows(row, body.dimensions, _pooling(service)) for row in rows]
    except UsageError as error:
        raise wrong_field("dimensions", str(error).removeprefix("dimensions: ")) from None
    count, name = sum(map(len, every)), service.answers_as

    def written() -> bytes:
        data = [
            encode({"object": "embedding", "index": i, "embedding": _written(row[0], body.encoding_format)})
            for i, row in enumerate(normalized(row, _norm(service, body)) for row in rows)
        ]
        counts, listed = {"prompt_tokens": count, "total_tokens": count}, joined(data)
        return encode({"object": "list", "data": listed, "model": name, "usage": counts})

    return raw_json(await service.access.in_thread(request, written))


async def llama_embeddings(service: Service, request: Request) -> Response:
    """`POST /embedding` and `/embeddings`: a list of rows for each text."""
    body = await body_of(service, request, Embeddings)
    _, rows = await embedded_texts(service, body, request)
    norm = None if _pooling(service) == "none" else _norm(service, body)

    def written() -> msgspec.Raw:
        scaled = (row if norm is None else normalized(row, norm) for row in rows)
        return joined([encode({"index": i, "embedding": row.tolist()}) for i, row in enumerate(scaled)])

    return json_response(await service.access.in_thread(request, written))


def _pooling(service: Service) -> str:
    return service.options.pooling or default_pooling(service.model.executor)


async def embedded_texts(
    service: Service, body: Embeddings, request: Request, truncated: bool = False
) -> tuple[list[list[int]], list[Floats]]:
    """The ids of each text, and its rows. truncated: texts that are too long are cut, not refused."""
    content = body.content if body.input is None else body.input
    if content is None:
        raise wrong_field("input", "it is missing")

    cancellation = Cancellation()

    def work() -> tuple[list[list[int]], list[Floats]]:
        most = service.options.limits.embedded
        texts = _prompted(content, prompt_of(service.model.executor, None))
        every, _ = prompts_of(texts, service.tokenizer, most, _most_tokens(service), "input")
        if truncated:
            every = [cut_ids(ids, _most_tokens(service), service.tokenizer) for ids in every]
        _check_lengths(service, every)
        n_tokens = sum(map(len, every))
        service.access.begin_use(request.scope.get("graphml.key"), n_tokens)
        request.scope["graphml.operation"] = ModelOperation("embeddings", service.name, n_input=n_tokens)
        return every, _rows(service, request, every, _pooling(service), cancellation)

    return await _unless_left(service, request, work, cancellation)


async def _unless_left(
    service: Service, request: Request, work: Callable[[], T], cancellation: Cancellation
) -> T:
    """What some work in a thread returns; where the client leaves its texts are ended."""
    embedded = service.access.in_thread(request, work, pool="embeddings")
    result = await unless_left(request.receive, embedded, cancellation)
    if result is None:
        raise ClientDisconnect
    return result


def _most_tokens(service: Service) -> int:
    return longest_text(service.model.executor)


def _prompted(content: Any, prompt: str) -> Any:
    """Texts behind the prompt that a folder puts before all texts; ids are taken as they are."""
    if isinstance(content, list):
        return content if any(isinstance(part, int) for part in content) else [
            _prompted(part, prompt) for part in content
        ]  # fmt: skip
    return prompt + content if isinstance(content, str) else content


def _check_lengths(service: Service, every: list[list[int]]) -> None:
    """ApiError 400 for a text that does not fit into a step, or has no tokens."""
    most = _most_tokens(service)
    for number, ids in enumerate(every):
        if len(ids) > most:
            raise ApiError(
                400, f"input[{number}] ({len(ids)} tokens) is too large to process: at most {most} are",
                "exceed_context_size_error", n_prompt_tokens=len(ids), n_ctx=most,
            )  # fmt: skip
        if not ids:
            raise wrong_field("input", f"text {number} has no tokens")


def _rows(
    service: Service, request: Request, every: list[list[int]], pooling: str, cancellation: Cancellation
) -> list[Floats]:
    executor = service.model.executor
    if pooling != "none":
        pooling = chosen_pooling(executor, pooling)
    begin = time.monotonic()
    engine, key = service.access.engine, request.scope.get("graphml.key")
    if engine is not None and engine.embeds:
        rows = engine.embed_ids(every, pooling, key=key, cancellation=cancellation)
    else:
        rows = service.model.embed_ids(every, pooling, cancellation=cancellation)
    service.access.metrics.embedded(sum(map(len, every)), time.monotonic() - begin)
    return rows


def _late_scores(
    service: Service, request: Request, texts: list[str], cancellation: Cancellation
) -> tuple[int, list[float]]:
    """The tokens of a query and of the documents behind it, and their scores by late interaction."""
    count, begin = sum(len(service.tokenizer.encode(text)) for text in texts), time.monotonic()
    service.access.begin_use(request.scope.get("graphml.key"), count)
    try:
        (query,) = service.model.token_rows(texts[0], query=True, cancellation=cancellation)
        documents = service.model.token_rows(texts[1:], cancellation=cancellation)
    except UsageError as error:  # a text that is longer than the folder says
        raise ApiError(400, str(error)) from None
    service.access.metrics.embedded(count, time.monotonic() - begin)
    return count, max_sim(query, documents)[:, 0].tolist()


def _norm(service: Service, body: Embeddings) -> int:
    return service.options.embd_normalize if body.embd_normalize is None else body.embd_normalize


def _written(row: Floats, form: str | None) -> str | list[float]:
    if form == "base64":
        return base64.b64encode(row.astype("<f4").tobytes()).decode()
    numbers: list[float] = row.tolist()
    return numbers


async def rerank(service: Service, request: Request) -> Response:
    """`POST /v1/rerank`, `/rerank`, `/reranking`."""
    if not service.options.reranking or service.options.pooling not in (None, "rank"):
        raise ApiError(501, "This server does not support reranking. Start it with `--reranking`")
    body = await body_of(service, request, Rerank)
    plain = body.documents is None
    documents = body.texts if plain else body.documents
    if not documents:
        raise wrong_field("documents", "wanted a list of texts that is not empty")
    if len(documents) > service.options.limits.prompts:
        raise wrong_field("documents", f"at most {service.options.limits.prompts} are wanted")

    cancellation = Cancellation()

    def work() -> tuple[int, list[float]]:
        for document in documents:
            check_fits([body.query, document], service.tokenizer, _most_tokens(service))
        executor, tokenizer = service.model.executor, service.tokenizer
        if late_interaction_of(executor) is not None:
            return _late_scores(service, request, [body.query, *documents], cancellation)
        every = [pair_ids(executor, tokenizer, body.query, document) for document in documents]
        _check_lengths(service, every)
        service.access.begin_use(request.scope.get("graphml.key"), sum(map(len, every)))
        rows = _rows(service, request, every, "rank", cancellation)
        return sum(map(len, every)), [float(row[0, 0]) for row in rows]

    count, scores = await _unless_left(service, request, work, cancellation)
    order = sorted(range(len(scores)), key=lambda index: -scores[index])
    order = order[: len(order) if body.top_n is None else body.top_n]
    if plain:
        ranked: list[dict[str, Any]] = [{"index": i, "score": scores[i]} for i in order]
        for entry in ranked if body.return_text else ():
            entry["text"] = documents[entry["index"]]
        return json_response(ranked)
    results = [{"index": i, "relevance_score": scores[i]} for i in order]
    counts = {"prompt_tokens": count, "total_tokens": count}
    return json_response({"model": service.answers_as, "object": "list", "usage": counts, "results": results})
