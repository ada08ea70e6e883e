"""`/v1/fim/completions`: Mistral's protocol for the text between a prompt and a suffix.

Editors that know Codestral speak it. Knows that protocol; see https://docs.mistral.ai/api/endpoint/fim.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from graphml.server.access.text_limits import check_chars
from graphml.server.engine.running_request import Generation
from graphml.server.engine.service import Service, all_finished, cancel_all, merged, new_id, usage
from graphml.server.protocols.openai_completions import reason
from graphml.server.protocols.request_body import body_of
from graphml.server.requests.request_fields import Count, Sampling
from graphml.server.requests.sampling_settings import RequestSettings
from graphml.server.responses.api_errors import wrong_field
from graphml.server.responses.event_stream import DONE, EventStream, event, unless_left
from graphml.server.responses.json_response import gone, json_response


class FimCompletion(Sampling, kw_only=True):
    """The fields of a request."""

    prompt: str
    suffix: str | None = None
    random_seed: Count | None = None
    min_tokens: Count | None = None


async def fim_completions(service: Service, request: Request) -> Response | EventStream:
    """`POST /v1/fim/completions`."""
    body = await body_of(service, request, FimCompletion)
    if body.min_tokens:
        raise wrong_field("min_tokens", "it is not supported")
    suffix = body.suffix or ""
    for name, text in (("prompt", body.prompt), ("suffix", suffix)):
        check_chars(text, service.options.limits.tokenized_chars, name)
    if body.seed is None:
        body.seed = body.random_seed

    def prompts() -> tuple[list[list[int]], RequestSettings]:
        settings, n_ctx = service.settings(body), service.access.n_ctx
        return [
            service.model.fill_ids(body.prompt, suffix, max_tokens=settings.max_tokens, n_ctx=n_ctx)
        ], settings

    generations = await service.begin(request, body, prompts)
    leave = partial(cancel_all, generations)
    shown = {"id": new_id("cmpl-"), "model": service.answers_as, "created": int(time.time())}
    if body.stream:
        return service.shared.stream(request, _events(generations, shown), leave, body.sse_ping_interval)
    await unless_left(request.receive, all_finished(generations), leave)
    if await request.is_disconnected():
        return gone()
    results = generations[0].results()
    choices = [
        {"index": index, "finish_reason": reason(result.stop_reason),
         "message": {"role": "assistant", "content": result.text, "tool_calls": None}}
        for index, result in enumerate(results)
    ]  # fmt: skip
    return json_response({**shown, "object": "chat.completion", "choices": choices, "usage": usage(results)})


async def _events(generations: list[Generation], shown: dict[str, Any]) -> AsyncGenerator[bytes, None]:
    begun = set[int]()

    def chunk(index: int, text: str, finish_reason: str | None = None) -> dict[str, Any]:
        first = {} if index in begun else {"role": "assistant"}
        begun.add(index)
        choice = {"index": index, "delta": {**first, "content": text}, "finish_reason": finish_reason}
        return {**shown, "object": "chat.completion.chunk", "choices": [choice]}

    async for index, token in merged(generations):
        if token.piece:
            yield event(chunk(index, token.piece))
    results = generations[0].results()
    for index, result in enumerate(results):
        last = chunk(index, "", reason(result.stop_reason))
        yield event({**last, "usage": usage(results)} if index == len(results) - 1 else last)
    yield DONE
