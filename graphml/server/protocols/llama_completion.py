"""llama-server's own `/completion`: prompts in, texts with all that it knows of them out.

Knows that protocol; see tools/server/README.md of llama.cpp.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from graphml.api.token_stream import Result
from graphml.api.tokens import Token
from graphml.server.engine.running_request import Generation
from graphml.server.engine.service import STOP_TYPES, Service, all_finished, cancel_all, merged, timings
from graphml.server.observing.server_metrics import SequenceUse
from graphml.server.protocols.request_body import body_of
from graphml.server.protocols.shown_logprobs import entries
from graphml.server.requests.request_fields import Completion, Sampling
from graphml.server.requests.sampling_settings import RequestSettings, described
from graphml.server.responses.event_stream import EventStream, event, unless_left
from graphml.server.responses.json_response import gone, json_response


async def completion(service: Service, request: Request) -> Response | EventStream:
    """`POST /completion` and `/completions`."""
    body = await body_of(service, request, Completion)
    if not body.n_probs and not body.logprobs:
        body.logprobs = None  # 0 is for none here

    def prompts() -> tuple[list[list[int]], RequestSettings]:
        ids = service.prompts_of(body.prompt)
        return ids, service.settings(body)

    generations = await service.begin(request, body, prompts)
    return await answered(service, request, body, generations, body.response_fields)


async def answered(
    service: Service,
    request: Request,
    sampling: Sampling,
    generations: list[Generation],
    fields: list[str] | None = None,
) -> Response | EventStream:
    """The response of llama-server's shape, plain or streamed."""
    leave = partial(cancel_all, generations)
    if sampling.stream:
        events = _events(service, sampling, generations, fields)
        return service.shared.stream(request, events, leave, sampling.sse_ping_interval)

    await unless_left(request.receive, all_finished(generations), leave)
    if await request.is_disconnected():
        return gone()
    every = [
        final(service, sampling, generation, number, index)
        for number, generation in enumerate(generations)
        for index in range(generation.settings.n)
    ]
    every = [_chosen(answer, fields) for answer in every] if fields else every
    return json_response(every[0] if len(every) == 1 else every)


async def _events(
    service: Service, sampling: Sampling, generations: list[Generation], fields: list[str] | None
) -> AsyncGenerator[bytes, None]:
    held: dict[int, list[Token]] = {}
    counts: dict[int, int] = {}
    if sampling.return_progress and len(generations) == 1:
        async for progress in generations[0].prompt_progress():
            generation = generations[0]
            yield event({
                "index": 0, "content": "", "tokens": [], "stop": False, "id_slot": max(0, generation.slot),
                "tokens_predicted": 0, "tokens_evaluated": len(generation.ids), "prompt_progress": progress,
                "timings": progress_timings(progress),
            })  # fmt: skip
    async for index, token in merged(generations):
        counts[index] = counts.get(index, 0) + 1
        held.setdefault(index, []).append(token)
        if not token.piece:
            continue  # until its text is certain
        generation = generations[index // generations[0].settings.n]
        chunk: dict[str, Any] = {
            "index": index, "content": token.piece, "tokens": [token.id for token in held[index]],
            "stop": False, "id_slot": generation.slot, "tokens_predicted": counts[index],
            "tokens_evaluated": len(generation.ids),
        }  # fmt: skip
        scored = [token.logprobs for token in held.pop(index) if token.logprobs is not None]
        if scored:
            chunk["completion_probabilities"] = entries(scored, bool(sampling.post_sampling_probs))
        if sampling.timings_per_token:
            chunk["timings"] = generation.used(index % generation.settings.n, counts[index]).timings
        yield event(chunk)
    for number, generation in enumerate(generations):
        for index in range(generation.settings.n):
            last = final(service, sampling, generation, number, index)
            last |= {"content": "", "tokens": []}
            yield event(_chosen(last, fields) if fields else last)


def progress_timings(progress: dict[str, Any]) -> dict[str, Any]:
    """Times while a prompt is computed."""
    total, cached, new = progress["total"], progress["cache"], progress["processed"] - progress["cache"]
    return SequenceUse(total, cached, new, 0, progress["time_ms"] / 1e3, 0.0).timings


def final(
    service: Service, sampling: Sampling, generation: Generation, number: int, index: int
) -> dict[str, Any]:
    """All that is known of an answer at its end."""
    result, settings = generation.results()[index], generation.settings
    n_predict = -1 if settings.max_tokens is None else settings.max_tokens
    sequence = generation.sequences[index]
    answer = {
        "index": number * settings.n + index, "content": result.text,
        "tokens": result.tokens if sampling.return_tokens else [], "id_slot": max(0, generation.slot),
        "stop": True, "model": service.answers_as, "tokens_predicted": result.n_gen,
        "tokens_evaluated": result.n_prompt, "generation_settings": described(settings, sampling, n_predict),
        "prompt": service.tokenizer.decode(generation.ids), "has_new_line": "\n" in result.text,
        "truncated": result.stop_reason == "context" or sequence.n_dropped > 0,
        "stop_type": STOP_TYPES.get(result.stop_reason, "none"),
        "stopping_word": stopping_word(service, result, settings),
        "tokens_cached": result.n_prompt + result.n_gen, "timings": timings(result),
    }  # fmt: skip
    if result.logprobs is not None and not sampling.stream:
        answer["completion_probabilities"] = entries(
            result.logprobs[: generation.shown(index)], bool(sampling.post_sampling_probs)
        )
    return answer


def stopping_word(service: Service, result: Result, settings: RequestSettings) -> str:
    """The stop string that ended an answer; empty where none did."""
    if result.stop_reason != "stop":
        return ""
    text = service.tokenizer.decode(result.tokens, skip_special=True)
    places = {word: text.find(word) for word in settings.params.stop if word in text}
    return min(places, key=lambda word: places[word], default="")


def _chosen(answer: dict[str, Any], fields: list[str]) -> dict[str, Any]:
    """Those fields of an answer; a slash goes into an object, and names that are not there are left out."""
    chosen: dict[str, Any] = {}
    for name in fields:
        value: Any = answer
        for part in name.split("/"):
            value = value.get(part) if isinstance(value, dict) else None
        if value is not None:
            chosen[name] = value
    return chosen
