"""`/v1/chat/completions`: OpenAI's protocol for conversations.

Knows that protocol; see https://platform.openai.com/docs/api-reference/chat.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from graphml.sampling.logprobs import TokenLogprobs
from graphml.server.answers import Answering, answering
from graphml.server.api_errors import ApiError
from graphml.server.conversations import conversation_of, prompt_text
from graphml.server.event_stream import DONE, EventStream, event, unless_left
from graphml.server.json_response import gone, json_response
from graphml.server.llama_completion import final, progress_timings, running_timings
from graphml.server.request_body import body_of, read_body
from graphml.server.request_fields import ChatCompletion, as_object, converted
from graphml.server.service import FINGERPRINT, Service, new_id, timings, usage
from graphml.server.shown_logprobs import entries
from graphml.text.answers import ContentDelta, Event, ReasoningDelta, ToolCallBegin, ToolCallDelta


async def chat(service: Service, request: Request) -> Response | EventStream:
    """`POST /v1/chat/completions`."""
    given = await body_of(service, request, ChatCompletion)
    made = await answering(service, request, given)
    shown = {"id": new_id("chatcmpl-"), **_shown(service)}
    if given.stream:
        events = _events(service, given, made, shown)
        return service.stream(request, events, made.cancel, given.sse_ping_interval)
    if not await ended(request, made.finished(), made.cancel):
        return gone()
    return json_response(body(service, given, made, shown))


def _shown(service: Service) -> dict[str, Any]:
    return {"created": int(time.time()), "model": service.name, "system_fingerprint": FINGERPRINT}


async def ended(request: Request, work: Awaitable[None], cancel: Callable[[], None]) -> bool:
    """Wait until an answer has ended; whether the client is still there."""
    await unless_left(request.receive, work, cancel)
    return not await request.is_disconnected()


def body(service: Service, given: ChatCompletion, made: Answering, shown: dict[str, Any]) -> dict[str, Any]:
    """The body of a response that is not streamed."""
    results = made.results
    found: dict[str, Any] = {
        **shown,
        "object": "chat.completion",
        "choices": [
            {
                "index": index,
                "message": made.readers[index].answer.message(),
                "logprobs": scores(given, (result.logprobs or ())[: made.one.shown(index)]),
                "finish_reason": made.reason(index),
            }
            for index, result in enumerate(results)
        ],
        "usage": usage(results),
        "timings": timings(results[0]),
    }
    if given.verbose or service.options.verbose:
        found["__verbose"] = final(service, given, made.one, 0, 0)
    return found


def scores(given: ChatCompletion, found: Sequence[TokenLogprobs | None] | None) -> dict[str, Any] | None:
    """The log-probabilities of an answer, or a part of it; None where nobody asked for them."""
    if not found or found[0] is None:
        return None
    return {"content": entries(found, bool(given.post_sampling_probs)), "refusal": None}


def delta_of(one: Event) -> dict[str, Any] | None:
    """An event as a chunk's delta; None for those that have none."""
    if isinstance(one, ContentDelta):
        return {"content": one.text} if one.text else None
    if isinstance(one, ReasoningDelta):
        return {"reasoning_content": one.text} if one.text else None
    if isinstance(one, ToolCallBegin):
        function = {"name": one.name, "arguments": ""}
        return {"tool_calls": [{"index": one.index, "id": one.id, "type": "function", "function": function}]}
    if isinstance(one, ToolCallDelta):
        return {"tool_calls": [{"index": one.index, "function": {"arguments": one.text}}]}
    return None


async def _events(
    service: Service, given: ChatCompletion, made: Answering, shown: dict[str, Any]
) -> AsyncGenerator[bytes, None]:
    shown = {**shown, "object": "chat.completion.chunk"}

    def chunk(index: int, delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return {**shown, "choices": [choice]}

    begin, counts, begun = time.monotonic(), [0] * made.one.settings.n, set[int]()
    held: list[list[TokenLogprobs | None]] = [[] for _ in counts]
    if given.return_progress:
        async for told in made.one.prompt_progress():
            first = chunk(0, {"role": "assistant", "content": None})
            yield event({**first, "prompt_progress": told, "timings": progress_timings(told)})
        begun.add(0)
    async for index, token, found in made.events():
        if index not in begun:
            begun.add(index)
            yield event(chunk(index, {"role": "assistant", "content": None}))
        if token is not None:
            counts[index] += 1
            held[index].append(token.logprobs)
        for delta in filter(None, map(delta_of, found)):
            one = chunk(index, delta)
            one["choices"][0]["logprobs"] = scores(given, held[index])
            held[index] = []
            if given.timings_per_token:
                one["timings"] = running_timings(made.one, counts[index], begin)
            yield event(one)
    results = made.results
    counted = given.stream_options is not None and given.stream_options.include_usage
    for index, result in enumerate(results):
        last = chunk(index, {}, made.reason(index))
        yield event(last if counted else {**last, "timings": timings(result)})
    if counted:
        yield event({**shown, "choices": [], "usage": usage(results), "timings": timings(results[0])})
    yield DONE


async def input_tokens(service: Service, request: Request) -> Response:
    """`POST /v1/chat/completions/input_tokens`: how many tokens a conversation's prompt has."""
    given = await body_of(service, request, ChatCompletion)
    found = await service.access.in_thread(conversation_of, service, given)
    return json_response({"object": "response.input_tokens", "input_tokens": len(found.ids)})


async def apply_template(service: Service, request: Request) -> Response:
    """`POST /apply-template`: the text that messages become."""
    given = await body_of(service, request, ChatCompletion)
    return json_response({"prompt": await service.access.in_thread(prompt_text, service, given)})


async def predict(service: Service, request: Request) -> Response:
    """`POST /predict`: conversations in a list, as Google's Vertex AI sends them."""
    instances = (await read_body(service, request, as_object)).get("instances")
    if not isinstance(instances, list) or not instances:
        raise ApiError(400, "Field 'instances': wanted a list of requests", param="instances")
    every: list[tuple[ChatCompletion, Answering]] = []

    def cancel() -> None:
        for _, made in every:
            made.cancel()

    async def finished() -> None:
        for _, made in every:
            await made.finished()

    try:
        for one in instances:
            given = converted(one if isinstance(one, dict) else {}, ChatCompletion)
            every.append((given, await answering(service, request, given)))
    except BaseException:
        cancel()
        raise
    if not await ended(request, finished(), cancel):
        return gone()
    shown = _shown(service)
    answers = [body(service, given, made, {"id": new_id("chatcmpl-"), **shown}) for given, made in every]
    return json_response({"predictions": answers})
