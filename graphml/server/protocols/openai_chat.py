"""`/v1/chat/completions`: OpenAI's protocol for conversations.

Knows that protocol; see https://platform.openai.com/docs/api-reference/chat.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from graphml.api.denoising import OPEN, shown_answer
from graphml.api.token_stream import Denoised
from graphml.sampling.candidates.logprobs import TokenLogprobs
from graphml.server.engine.served_models import ServedModels
from graphml.server.engine.service import FINGERPRINT, Service, new_id, timings, usage
from graphml.server.protocols.answers import Answering, answering
from graphml.server.protocols.conversations import conversation_of, prompt_text
from graphml.server.protocols.llama_completion import final, progress_timings
from graphml.server.protocols.request_body import body_of, limited_body, read_body
from graphml.server.protocols.shown_logprobs import entries
from graphml.server.requests.request_fields import ChatCompletion, Control, as_object, converted, decoded
from graphml.server.responses.api_errors import ApiError, wrong_field
from graphml.server.responses.event_stream import DONE, EventStream, event, unless_left
from graphml.server.responses.json_response import gone, json_response
from graphml.text.answers import ContentDelta, Event, ReasoningDelta, ToolCallBegin, ToolCallDelta


async def chat(service: Service, request: Request) -> Response | EventStream:
    """`POST /v1/chat/completions`."""
    chat = await body_of(service, request, ChatCompletion)
    reply = await answering(service, request, chat)
    shown = {"id": new_id("chatcmpl-"), **_shown(service)}
    reply.generation.id = shown["id"]
    if chat.stream:
        events = _events(service, chat, reply, shown)
        return service.shared.stream(request, events, reply.cancel, chat.sse_ping_interval)
    if not await ended(request, reply.finished(), reply.cancel):
        return gone()
    return json_response(body(service, chat, reply, shown))


def _shown(service: Service) -> dict[str, Any]:
    return {"created": int(time.time()), "model": service.answers_as, "system_fingerprint": FINGERPRINT}


async def ended(request: Request, work: Awaitable[None], cancel: Callable[[], None]) -> bool:
    """Wait until an answer has ended; whether the client is still there."""
    await unless_left(request.receive, work, cancel)
    return not await request.is_disconnected()


def body(service: Service, chat: ChatCompletion, reply: Answering, shown: dict[str, Any]) -> dict[str, Any]:
    """The body of a response that is not streamed."""
    results = reply.results
    response: dict[str, Any] = {
        **shown,
        "object": "chat.completion",
        "choices": [
            {
                "index": index,
                "message": reply.readers[index].answer.message(cut=True),
                "logprobs": scores(chat, reply.tokens[index].logprobs),
                "finish_reason": reply.reason(index),
            }
            for index in range(len(results))
        ],
        "usage": _usage(reply),
        "timings": timings(results[0]),
    }
    if chat.verbose or service.options.verbose:
        response["__verbose"] = final(service, chat, reply.generation, 0, 0)
    return response


def _usage(reply: Answering) -> dict[str, Any]:
    details = {"completion_tokens_details": {"reasoning_tokens": reply.n_reasoning}}
    return {**usage(reply.results), **details}


def scores(chat: ChatCompletion, logprobs: Sequence[TokenLogprobs]) -> dict[str, Any] | None:
    """The log-probabilities of an answer's text, or of a part of it; None where there are none."""
    if not logprobs:
        return None
    return {"content": entries(logprobs, bool(chat.post_sampling_probs)), "refusal": None}


def delta_of(event: Event) -> dict[str, Any] | None:
    """An event as a chunk's delta; None for those that have none."""
    if isinstance(event, ContentDelta):
        return {"content": event.text} if event.text else None
    if isinstance(event, ReasoningDelta):
        return {"reasoning_content": event.text} if event.text else None
    if isinstance(event, ToolCallBegin):
        function = {"name": event.name, "arguments": ""}
        return {
            "tool_calls": [{"index": event.index, "id": event.id, "type": "function", "function": function}]
        }
    if isinstance(event, ToolCallDelta):
        return {"tool_calls": [{"index": event.index, "function": {"arguments": event.text}}]}
    return None


async def _events(
    service: Service, chat: ChatCompletion, reply: Answering, shown: dict[str, Any]
) -> AsyncGenerator[bytes, None]:
    shown = {**shown, "object": "chat.completion.chunk"}

    def chunk(index: int, delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return {**shown, "choices": [choice]}

    counts, begun = [0] * reply.generation.settings.n, set[int]()
    n_scored = [0] * len(counts)
    if chat.return_progress:
        async for progress in reply.generation.prompt_progress():
            first = chunk(0, {"role": "assistant", "content": None})
            yield event({**first, "prompt_progress": progress, "timings": progress_timings(progress)})
        begun.add(0)
    steps, n_steps = list[Denoised](), dict[int, int]()
    async for index, token, events in reply.events(steps.append if chat.return_denoising else None):
        if index not in begun:
            begun.add(index)
            yield event(chunk(index, {"role": "assistant", "content": None}))
        for denoising in _denoising(service, steps, n_steps):
            yield event({**chunk(index, {}), "denoising": denoising})
        if token is not None:
            counts[index] += 1
        for delta in filter(None, map(delta_of, events)):
            next_chunk = chunk(index, delta)
            scored = reply.tokens[index].logprobs
            next_chunk["choices"][0]["logprobs"] = scores(chat, scored[n_scored[index] :])
            n_scored[index] = len(scored)
            if chat.timings_per_token:
                next_chunk["timings"] = reply.generation.used(index, counts[index]).timings
            yield event(next_chunk)
    results = reply.results
    counted = chat.stream_options is not None and chat.stream_options.include_usage
    for index, result in enumerate(results):
        last = chunk(index, {}, reply.reason(index))
        yield event(last if counted else {**last, "timings": timings(result)})
    if counted:
        yield event({**shown, "choices": [], "usage": _usage(reply), "timings": timings(results[0])})
    yield DONE


def _denoising(service: Service, steps: list[Denoised], n_steps: dict[int, int]) -> Iterator[dict[str, Any]]:
    """What `return_denoising` reports of steps, which are taken out; n_steps: of those told, by answer."""
    tokenizer = service.model.tokenizer
    while steps and tokenizer is not None:
        index, answer = (step := steps.pop(0)).index, step.answer
        if answer.n_steps > n_steps.get(index, 0):  # as it is now, which may be later steps' too
            n_steps[index] = answer.n_steps
            text = shown_answer(tokenizer, answer)
            yield {"step": answer.n_steps, "steps": answer.most_steps, "open": OPEN, "text": text}


async def input_tokens(service: Service, request: Request) -> Response:
    """`POST /v1/chat/completions/input_tokens`: how many tokens a conversation's prompt has."""
    chat = await body_of(service, request, ChatCompletion)
    prompt = await service.access.in_thread(request, conversation_of, service, chat)
    return json_response({"object": "response.input_tokens", "input_tokens": len(prompt.ids)})


async def control(models: ServedModels, request: Request) -> Response:
    """`POST /v1/chat/completions/control`: have the reasoning of an answer of the same key end."""
    wanted = await limited_body(models.options.limits, request, lambda raw: decoded(raw, Control))
    if not wanted.id:
        raise wrong_field("id", "wanted the id of a completion that runs")
    if wanted.action != "reasoning_end":
        raise wrong_field("action", f"wanted reasoning_end, got {wanted.action!r:.40}")
    key = request.scope.get("graphml.key")
    every = [answer for other in list(models.shared.services) for answer in other.access.active.values()]
    running = [answer for answer in every if answer.id == wanted.id]
    if not running or running[0].key != key:
        return json_response({"success": False, "message": "no active completion for this id"})
    if running[0].settings.params.reasoning_budget < 0:
        refused = "reasoning control not enabled for this completion"
        return json_response({"success": False, "message": refused})
    if not await asyncio.to_thread(running[0].end_reasoning):
        return json_response({"success": False, "message": "the completion is in no reasoning"})
    return json_response({"success": True})


async def apply_template(service: Service, request: Request) -> Response:
    """`POST /apply-template`: the text that messages become."""
    chat = await body_of(service, request, ChatCompletion)
    return json_response({"prompt": await service.access.in_thread(request, prompt_text, service, chat)})


async def predict(service: Service, request: Request) -> Response:
    """`POST /predict`: conversations in a list, as Google's Vertex AI sends them."""
    instances = (await read_body(service, request, as_object)).get("instances")
    if not isinstance(instances, list) or not instances:
        raise ApiError(400, "Field 'instances': wanted a list of requests", param="instances")
    if len(instances) > (most := service.options.limits.prompts):
        raise wrong_field("instances", f"at most {most} are wanted, got {len(instances)}")
    every: list[tuple[ChatCompletion, Answering]] = []

    def cancel() -> None:
        for _, reply in every:
            reply.cancel()

    async def finished() -> None:
        for _, reply in every:
            await reply.finished()

    try:
        for instance in instances:
            chat = converted(instance if isinstance(instance, dict) else {}, ChatCompletion)
            every.append((chat, await answering(service, request, chat)))
    except BaseException:
        cancel()
        raise
    if not await ended(request, finished(), cancel):
        return gone()
    shown = _shown(service)
    answers = [body(service, chat, reply, {"id": new_id("chatcmpl-"), **shown}) for chat, reply in every]
    return json_response({"predictions": answers})
