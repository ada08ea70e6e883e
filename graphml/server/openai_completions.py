"""`/v1/completions`: OpenAI's protocol for prompts that are texts or ids.

Knows that protocol; see https://platform.openai.com/docs/api-reference/completions.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from graphml.server.api_errors import ApiError
from graphml.server.engine_access import Generation
from graphml.server.event_stream import DONE, EventStream, event, unless_left
from graphml.server.json_response import gone, json_response
from graphml.server.llama_completion import final, refuse_unsupported, running_timings
from graphml.server.prompts import prompts_of
from graphml.server.request_fields import Completion, decoded
from graphml.server.sampling_settings import Settings
from graphml.server.service import FINGERPRINT, Service, all_finished, merged, new_id, timings, usage


async def completions(service: Service, request: Request) -> Response | EventStream:
    """`POST /v1/completions`."""
    given = decoded(await request.body(), Completion)
    refuse_unsupported(given)
    if given.suffix:
        raise ApiError(501, "Field 'suffix': use /infill, for models that fill in the middle", param="suffix")

    def prompts() -> tuple[list[list[int]], Settings]:
        found, _ = prompts_of(given.prompt, service.tokenizer, service.options.limits.prompts)
        return found, service.settings(given)

    generations = await service.begin(request, given, prompts)
    shown = {"id": new_id("cmpl-"), "object": "text_completion", "created": int(time.time()),
             "model": service.name, "system_fingerprint": FINGERPRINT}  # fmt: skip
    if given.stream:
        ping = service.options.ping if given.sse_ping_interval is None else given.sse_ping_interval
        return EventStream(_events(service, given, generations, shown), ping, service.options.timeout)

    def leave() -> None:
        for one in generations:
            one.cancel()

    await unless_left(request.receive, all_finished(generations), leave)
    if await request.is_disconnected():
        return gone()
    results = [result for one in generations for result in one.results()]
    body: dict[str, Any] = {
        **shown,
        "choices": [
            choice(
                index, _echoed(service, given, generations, index) + result.text, reason(result.stop_reason)
            )
            for index, result in enumerate(results)
        ],
        "usage": _usage(generations),
        "timings": timings(results[0]),
    }
    if given.verbose or service.options.verbose:
        body["__verbose"] = final(service, given, generations[0], 0, 0)
    return json_response(body)


async def _events(
    service: Service, given: Completion, generations: list[Generation], shown: dict[str, Any]
) -> AsyncGenerator[bytes, None]:
    begin, begun = time.monotonic(), set[int]()
    counts: dict[int, int] = {}
    async for index, token in merged(generations):
        counts[index] = counts.get(index, 0) + 1
        text = token.piece
        if index not in begun:
            begun.add(index)
            text = _echoed(service, given, generations, index) + text
        if not text:
            continue
        chunk = {**shown, "choices": [choice(index, text, None)]}
        if given.timings_per_token:
            one = generations[index // generations[0].settings.n]
            chunk["timings"] = running_timings(one, counts[index], begin)
        yield event(chunk)
    results = [result for one in generations for result in one.results()]
    told = given.stream_options is not None and given.stream_options.include_usage
    for index, result in enumerate(results):
        last = {**shown, "choices": [choice(index, "", reason(result.stop_reason))]}
        yield event(last if told else {**last, "timings": timings(result)})
    if told:
        yield event({**shown, "choices": [], "usage": _usage(generations), "timings": timings(results[0])})
    yield DONE


def reason(stop_reason: str) -> str:
    """Why an answer ended, as OpenAI says it."""
    return "stop" if stop_reason in ("end", "stop") else "length"


def choice(index: int, text: str, finish_reason: str | None) -> dict[str, Any]:
    """One answer, or a part of it."""
    return {"text": text, "index": index, "logprobs": None, "finish_reason": finish_reason}


def _echoed(service: Service, given: Completion, generations: list[Generation], index: int) -> str:
    if not given.echo:
        return ""
    one = generations[index // generations[0].settings.n]
    return service.tokenizer.decode(one.ids, skip_special=True)


def _usage(generations: list[Generation]) -> dict[str, Any]:
    every = [usage(one.results()) for one in generations]
    total = {
        name: sum(one[name] for one in every)
        for name in ("completion_tokens", "prompt_tokens", "total_tokens")
    }
    cached = sum(one["prompt_tokens_details"]["cached_tokens"] for one in every)
    return {**total, "prompt_tokens_details": {"cached_tokens": cached}}
