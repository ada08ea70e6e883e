"""`/v1/responses`: OpenAI's protocol of responses, whose latest ones are kept in memory.

Knows that protocol, and turns it into a conversation; see https://platform.openai.com/docs/api-reference/responses.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from graphml.server.access.text_limits import check_json_chars
from graphml.server.engine.served_models import ServedModels
from graphml.server.engine.service import Service, SharedParts, new_id, timings
from graphml.server.engine.stored_responses import StoredResponse
from graphml.server.protocols.answers import Answering, answering
from graphml.server.protocols.conversations import conversation_of
from graphml.server.protocols.llama_completion import progress_timings
from graphml.server.protocols.openai_chat import ended
from graphml.server.protocols.request_body import body_of, off_loop
from graphml.server.protocols.response_events import ResponseEvents
from graphml.server.protocols.response_items import input_items, output_items
from graphml.server.protocols.responses_input import Responses, as_chat
from graphml.server.protocols.shown_logprobs import entries
from graphml.server.responses.api_errors import ApiError, wrong_field
from graphml.server.responses.event_stream import EventStream
from graphml.server.responses.json_response import gone, json_response, raw_json
from graphml.text.answers import ContentDelta


async def responses(service: Service, request: Request) -> Response | EventStream:
    """`POST /v1/responses`."""
    body = await body_of(service, request, Responses)
    _check_shown(service, body)
    before, listed = _before(service, request, body)
    chat, messages = await off_loop(request, as_chat, body, before)
    reply = await answering(service, request, chat)
    shown = _shown(service, body)

    def keep(response: dict[str, Any], writer: ResponseEvents | None = None) -> None:
        if body.store is not False:
            after = [*messages, reply.readers[0].answer.message()]
            items = [*listed, *input_items(body.input)]
            streamed = (None, 0) if writer is None else (writer.pieces, writer.n_progress)
            service.shared.responses.put(
                request.scope.get("graphml.key"), StoredResponse(response, after, items, *streamed)
            )

    if body.stream:
        return service.shared.stream(request, _events(body, reply, shown, keep), reply.cancel)
    if not await ended(request, reply.finished(), reply.cancel):
        return gone()
    items = output_items(reply.readers[0].answer, entries(reply.tokens[0].logprobs))
    response = {**_whole(reply, shown, items), "timings": timings(reply.results[0])}
    keep(response)
    return json_response(response)


async def stored_response(models: ServedModels, request: Request) -> Response | EventStream:
    """`GET /v1/responses/ID`, as an object, or with `stream=true` as its events."""
    streamed = request.query_params.get("stream", "false")
    after = _whole_number(request, "starting_after", -1, -1)
    if streamed not in ("true", "false"):
        raise wrong_field("stream", f"wanted true or false, got {streamed!r:.40}")
    key = request.scope.get("graphml.key")
    if streamed == "false":
        return raw_json(models.shared.responses.response(key, request.path_params["id"]), is_kept=True)
    stored, replays = _stored(models.shared, request), models.shared.replays
    if replays[key] >= models.options.limits.replays:
        raise ApiError(429, "too many stored responses are read as events; try again later")
    replays[key] += 1
    end = contextlib.ExitStack()  # which is left once, however often its end is told
    end.callback(replays.subtract, [key])

    async def events() -> AsyncGenerator[bytes, None]:
        for event in ResponseEvents().replayed(stored.response, stored.pieces, stored.n_progress, after):
            yield event

    return models.shared.stream(request, events(), end.close)


async def listed_items(models: ServedModels, request: Request) -> Response:
    """`GET /v1/responses/ID/input_items`: what the model was given, the latest first."""
    items, order = list(_stored(models.shared, request).items), request.query_params.get("order", "desc")
    if order not in ("asc", "desc"):
        raise wrong_field("order", f"wanted asc or desc, got {order!r:.40}")
    if order == "desc":
        items.reverse()
    limit, after = _whole_number(request, "limit", 20, 1, 100), request.query_params.get("after")
    ids = [item["id"] for item in items]
    if after is not None:
        if after not in ids:
            raise wrong_field("after", "there is no item of this id")
        items = items[ids.index(after) + 1 :]
    some = items[:limit]
    ends = {"first_id": some[0]["id"], "last_id": some[-1]["id"]} if some else {"first_id": "", "last_id": ""}
    return json_response({"object": "list", "data": some, **ends, "has_more": len(items) > limit})


async def cancel_response(models: ServedModels, request: Request) -> Response:
    """`POST /v1/responses/ID/cancel`: refused, as no response goes on without its client."""
    _stored(models.shared, request)
    raise ApiError(400, "Cannot cancel a synchronous response: it ends with its connection")


def _stored(shared: SharedParts, request: Request, id: str | None = None) -> StoredResponse:
    id = request.path_params["id"] if id is None else id
    return shared.responses.get(request.scope.get("graphml.key"), id)


def _before(service: Service, request: Request, body: Responses) -> tuple[list[Any], list[dict[str, Any]]]:
    """The messages, and the items, of the response that a request goes on from."""
    if not body.previous_response_id:
        return [], []
    stored = _stored(service.shared, request, body.previous_response_id)
    return stored.messages, [*stored.items, *stored.response["output"]]


def _whole_number(request: Request, name: str, default: int, least: int, most: int = 2**31) -> int:
    """A parameter of the query; ApiError 400 for what is none, or beyond its range."""
    text = request.query_params.get(name, str(default))
    number = int(text) if text.removeprefix("-").isdecimal() and len(text) < 12 else None
    if number is None or not least <= number <= most:
        raise wrong_field(name, f"wanted a whole number from {least} to {most}, got {text!r:.40}")
    return number


async def delete_response(models: ServedModels, request: Request) -> Response:
    """`DELETE /v1/responses/ID`."""
    id = request.path_params["id"]
    models.shared.responses.delete(request.scope.get("graphml.key"), id)
    return json_response({"id": id, "object": "response", "deleted": True})


async def input_tokens(service: Service, request: Request) -> Response:
    """`POST /v1/responses/input_tokens`."""
    body = await body_of(service, request, Responses)
    chat, _ = await off_loop(request, as_chat, body, _before(service, request, body)[0])
    prompt = await service.access.in_thread(request, conversation_of, service, chat)
    return json_response({"object": "response.input_tokens", "input_tokens": len(prompt.ids)})


def _check_shown(service: Service, body: Responses) -> None:
    """ApiError 400 where what the response and its events repeat is very large."""
    limits = service.options.limits
    check_json_chars(body.metadata, limits.metadata_chars, "metadata")
    check_json_chars(body.tools, limits.tool_chars, "tools")
    check_json_chars(body.text, limits.grammar_chars, "text")


def _shown(service: Service, body: Responses) -> dict[str, Any]:
    return {
        "id": new_id("resp_"), "object": "response", "created_at": int(time.time()),
        "model": service.answers_as,
        "error": None, "incomplete_details": None, "instructions": body.instructions,
        "metadata": body.metadata or {}, "parallel_tool_calls": body.parallel_tool_calls is not False,
        "temperature": body.temperature, "top_p": body.top_p, "tools": body.tools or [],
        "tool_choice": body.tool_choice or "auto", "max_output_tokens": body.max_output_tokens,
        "previous_response_id": body.previous_response_id,
        "text": body.text or {"format": {"type": "text"}},
        "truncation": "disabled", "status": "in_progress", "output": [],
    }  # fmt: skip


def _whole(reply: Answering, shown: dict[str, Any], items: list[dict[str, Any]]) -> dict[str, Any]:
    """The response at its end."""
    result, cut = reply.results[0], reply.reason(0) == "length"
    counts = {
        "input_tokens": result.n_prompt, "output_tokens": result.n_gen,
        "total_tokens": result.n_prompt + result.n_gen,
        "input_tokens_details": {"cached_tokens": result.n_cached, "cache_write_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": reply.n_reasoning},
    }  # fmt: skip
    # llama-server calls a response completed that has met its limit; OpenAI calls it incomplete.
    more = {"incomplete_details": {"reason": "max_output_tokens"}, "status": "incomplete"} if cut else {}
    done = {"status": "completed", "completed_at": int(time.time())}
    return {**shown, **done, **more, "output": items, "usage": counts}


async def _events(
    body: Responses,
    reply: Answering,
    shown: dict[str, Any],
    keep: Callable[[dict[str, Any], ResponseEvents], None],
) -> AsyncGenerator[bytes, None]:
    count, writer, n_scored = 0, ResponseEvents(), 0
    for event in writer.begun(shown):
        yield event
    if body.return_progress:
        async for progress in reply.generation.prompt_progress():
            more = {"prompt_progress": progress, "timings": progress_timings(progress)}
            yield writer.progress(shown, **more)
    async for _, token, events in reply.events():
        count += token is not None
        scores = entries(reply.tokens[0].logprobs[n_scored:])
        n_scored = len(reply.tokens[0].logprobs)
        timed = {"timings": reply.generation.used(0, count).timings} if body.timings_per_token else {}
        for part in events:
            of_part, scores = (scores, []) if isinstance(part, ContentDelta) else ([], scores)
            for event in writer.written(part, of_part, timed):
                yield event
    for event in writer.closed() or ([] if writer.items else writer.empty_message()):
        yield event
    whole = _whole(reply, shown, writer.items)
    keep(whole, writer)
    yield writer.send(f"response.{whole['status']}", response=whole, timings=timings(reply.results[0]))
