"""`/v1/chat/completions`: OpenAI's protocol for conversations.

Knows that protocol; see https://platform.openai.com/docs/api-reference/chat.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from graphml.sampling.logprobs import TokenLogprobs
from graphml.server.api_errors import ApiError
from graphml.server.conversations import Conversation, conversation_of
from graphml.server.engine_access import Generation
from graphml.server.event_stream import DONE, EventStream, event, unless_left
from graphml.server.json_response import gone, json_response
from graphml.server.llama_completion import final, running_timings
from graphml.server.openai_completions import reason
from graphml.server.request_fields import ChatCompletion, as_object, converted, decoded
from graphml.server.sampling_settings import Settings
from graphml.server.service import FINGERPRINT, Service, all_finished, merged, new_id, timings, usage
from graphml.server.shown_logprobs import entries


async def chat(service: Service, request: Request) -> Response | EventStream:
    """`POST /v1/chat/completions`."""
    given = decoded(await request.body(), ChatCompletion)
    generations = await begun(service, request, given)
    shown = {"id": new_id("chatcmpl-"), "created": int(time.time()), "model": service.name,
             "system_fingerprint": FINGERPRINT}  # fmt: skip
    if given.stream:
        ping = service.options.ping if given.sse_ping_interval is None else given.sse_ping_interval
        return EventStream(_events(service, given, generations[0], shown), ping, service.options.timeout)
    if not await ended(request, generations):
        return gone()
    return json_response(answer(service, given, generations[0], shown))


async def begun(service: Service, request: Request, given: ChatCompletion) -> list[Generation]:
    """Have the engine answer a conversation."""

    def prompts() -> tuple[list[list[int]], Settings]:
        return [prompt(service, given).ids], service.settings(given)

    return await service.begin(request, given, prompts)


def prompt(service: Service, given: ChatCompletion) -> Conversation:
    """The prompt of a conversation."""
    return conversation_of(service, given)


async def ended(request: Request, generations: list[Generation]) -> bool:
    """Wait until all have ended; whether the client is still there."""

    def leave() -> None:
        for one in generations:
            one.cancel()

    await unless_left(request.receive, all_finished(generations), leave)
    return not await request.is_disconnected()


def answer(service: Service, given: ChatCompletion, one: Generation, shown: dict[str, Any]) -> dict[str, Any]:
    """The body of a response that is not streamed."""
    results = one.results()
    body: dict[str, Any] = {
        **shown,
        "object": "chat.completion",
        "choices": [
            {
                "index": index,
                "message": {"role": "assistant", "content": result.text},
                "logprobs": scores(given, result.logprobs),
                "finish_reason": reason(result.stop_reason),
            }
            for index, result in enumerate(results)
        ],
        "usage": usage(results),
        "timings": timings(results[0]),
    }
    if given.verbose or service.options.verbose:
        body["__verbose"] = final(service, given, one, 0, 0)
    return body


def scores(given: ChatCompletion, found: Sequence[TokenLogprobs | None] | None) -> dict[str, Any] | None:
    """The log-probabilities of an answer, or a part of it; None where nobody asked for them."""
    if not found or found[0] is None:
        return None
    return {"content": entries(found, bool(given.post_sampling_probs)), "refusal": None}


async def _events(
    service: Service, given: ChatCompletion, one: Generation, shown: dict[str, Any]
) -> AsyncGenerator[bytes, None]:
    shown = {**shown, "object": "chat.completion.chunk"}

    def chunk(index: int, delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return {**shown, "choices": [choice]}

    begin, counts = time.monotonic(), [0] * one.settings.n
    held: list[list[TokenLogprobs | None]] = [[] for _ in counts]
    async for index, token in merged([one]):
        if not counts[index]:
            yield event(chunk(index, {"role": "assistant", "content": None}))
        counts[index] += 1
        held[index].append(token.logprobs)
        if token.piece:
            found = chunk(index, {"content": token.piece})
            found["choices"][0]["logprobs"] = scores(given, held[index])
            held[index] = []
            if given.timings_per_token:
                found["timings"] = running_timings(one, counts[index], begin)
            yield event(found)
    results = one.results()
    told = given.stream_options is not None and given.stream_options.include_usage
    for index, result in enumerate(results):
        if not counts[index]:
            yield event(chunk(index, {"role": "assistant", "content": None}))
        last = chunk(index, {}, reason(result.stop_reason))
        yield event(last if told else {**last, "timings": timings(result)})
    if told:
        yield event({**shown, "choices": [], "usage": usage(results), "timings": timings(results[0])})
    yield DONE


async def input_tokens(service: Service, request: Request) -> Response:
    """`POST /v1/chat/completions/input_tokens`: how many tokens a conversation's prompt has."""
    given = decoded(await request.body(), ChatCompletion)
    found = await service.access.in_thread(prompt, service, given)
    return json_response({"object": "response.input_tokens", "input_tokens": len(found.ids)})


async def apply_template(service: Service, request: Request) -> Response:
    """`POST /apply-template`: the text that messages become."""
    given = decoded(await request.body(), ChatCompletion)
    found = await service.access.in_thread(prompt, service, given)
    return json_response({"prompt": found.text})


async def predict(service: Service, request: Request) -> Response:
    """`POST /predict`: conversations in a list, as Google's Vertex AI sends them."""
    instances = as_object(await request.body()).get("instances")
    if not isinstance(instances, list) or not instances:
        raise ApiError(400, "Field 'instances': wanted a list of requests", param="instances")
    generations: list[tuple[ChatCompletion, Generation]] = []
    with service.access.all_or_none() as made:
        for one in instances:
            given = converted(one if isinstance(one, dict) else {}, ChatCompletion)
            made += await begun(service, request, given)
            generations.append((given, made[-1]))
    if not await ended(request, made):
        return gone()
    shown = {"created": int(time.time()), "model": service.name, "system_fingerprint": FINGERPRINT}
    answers = [
        answer(service, given, one, {"id": new_id("chatcmpl-"), **shown}) for given, one in generations
    ]
    return json_response({"predictions": answers})
