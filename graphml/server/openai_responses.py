"""`/v1/responses`: OpenAI's protocol of responses, whose latest ones are kept in memory.

Knows that protocol, and turns it into a conversation; see https://platform.openai.com/docs/api-reference/responses.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from graphml.server.answers import Answering, answering
from graphml.server.conversations import conversation_of
from graphml.server.event_stream import EventStream, event
from graphml.server.json_response import gone, json_response
from graphml.server.llama_completion import progress_timings, running_timings
from graphml.server.openai_chat import ended
from graphml.server.request_body import body_of
from graphml.server.responses_input import Responses, as_chat
from graphml.server.service import Service, new_id, timings
from graphml.text.answers import (
    Answer,
    ContentDelta,
    ReasoningDelta,
    ToolCallBegin,
    ToolCallDelta,
    ToolCallEnd,
)


async def responses(service: Service, request: Request) -> Response | EventStream:
    """`POST /v1/responses`."""
    given = await body_of(service, request, Responses)
    key = request.scope.get("graphml.key")
    before: list[Any] = []
    if given.previous_response_id:
        before = service.responses.get(key, given.previous_response_id)[1]
    chat, messages = as_chat(given, before)
    made = await answering(service, request, chat)
    shown = _shown(service, given)

    def keep(response: dict[str, Any]) -> None:
        if given.store is not False:
            service.responses.put(key, response, [*messages, made.readers[0].answer.message()])

    if given.stream:
        writer = _Writer(service, given, made, shown)
        return service.stream(request, writer.events(keep), made.cancel)
    if not await ended(request, made.finished(), made.cancel):
        return gone()
    items = _items(made.readers[0].answer)
    found = {**_whole(made, shown, items), "timings": timings(made.results[0])}
    keep(found)
    return json_response(found)


async def stored_response(service: Service, request: Request) -> Response:
    """`GET /v1/responses/ID`."""
    return json_response(
        service.responses.get(request.scope.get("graphml.key"), request.path_params["id"])[0]
    )


async def delete_response(service: Service, request: Request) -> Response:
    """`DELETE /v1/responses/ID`."""
    id = request.path_params["id"]
    service.responses.delete(request.scope.get("graphml.key"), id)
    return json_response({"id": id, "object": "response", "deleted": True})


async def input_tokens(service: Service, request: Request) -> Response:
    """`POST /v1/responses/input_tokens`."""
    given = await body_of(service, request, Responses)
    found = await service.access.in_thread(conversation_of, service, as_chat(given, [])[0])
    return json_response({"object": "response.input_tokens", "input_tokens": len(found.ids)})


def _shown(service: Service, given: Responses) -> dict[str, Any]:
    return {
        "id": new_id("resp_"), "object": "response", "created_at": int(time.time()), "model": service.name,
        "error": None, "incomplete_details": None, "instructions": given.instructions,
        "metadata": given.metadata or {}, "parallel_tool_calls": given.parallel_tool_calls is not False,
        "temperature": given.temperature, "top_p": given.top_p, "tools": given.tools or [],
        "tool_choice": given.tool_choice or "auto", "max_output_tokens": given.max_output_tokens,
        "previous_response_id": given.previous_response_id,
        "text": given.text or {"format": {"type": "text"}},
        "truncation": "disabled", "status": "in_progress", "output": [],
    }  # fmt: skip


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _message(id: str, text: str | None, status: str = "completed") -> dict[str, Any]:
    content = [] if text is None else [_part(text)]
    return {"type": "message", "id": id, "role": "assistant", "status": status, "content": content}


def _reasoning(id: str, text: str | None, status: str = "completed") -> dict[str, Any]:
    content = [] if text is None else [{"type": "reasoning_text", "text": text}]
    return {"type": "reasoning", "id": id, "summary": [], "content": content, "status": status}


def _call(id: str, call_id: str, name: str, arguments: str, status: str = "completed") -> dict[str, Any]:
    return {"type": "function_call", "id": id, "call_id": call_id, "name": name, "arguments": arguments,
            "status": status}  # fmt: skip


def _items(answer: Answer) -> list[dict[str, Any]]:
    found = [_reasoning(new_id("rs_"), answer.reasoning)] if answer.reasoning else []
    if answer.content or not answer.tool_calls:
        found.append(_message(new_id("msg_"), answer.content))
    return found + [_call(new_id("fc_"), one.id, one.name, one.arguments) for one in answer.tool_calls]


def _whole(made: Answering, shown: dict[str, Any], items: list[dict[str, Any]]) -> dict[str, Any]:
    """The response at its end."""
    result, cut = made.results[0], made.reason(0) == "length"
    counts = {
        "input_tokens": result.n_prompt, "output_tokens": result.n_gen,
        "total_tokens": result.n_prompt + result.n_gen,
        "input_tokens_details": {"cached_tokens": result.n_cached, "cache_write_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0},
    }  # fmt: skip
    # llama-server calls a response completed that has met its limit; OpenAI calls it incomplete.
    more = {"incomplete_details": {"reason": "max_output_tokens"}, "status": "incomplete"} if cut else {}
    done = {"status": "completed", "completed_at": int(time.time())}
    return {**shown, **done, **more, "output": items, "usage": counts}


class _Writer:
    """Writes the events of one response, each with its number."""

    def __init__(self, service: Service, given: Responses, made: Answering, shown: dict[str, Any]) -> None:
        self._service, self._given, self._made, self._shown = service, given, made, shown
        self._number, self._items = 0, list[dict[str, Any]]()
        self._open: dict[str, Any] = {}  # the item that is being written

    def _send(self, kind: str, **data: Any) -> bytes:
        self._number += 1
        return event({"type": kind, "sequence_number": self._number - 1, **data}, kind)

    async def events(self, keep: Any) -> AsyncGenerator[bytes, None]:
        """All of them."""
        begin, count = time.monotonic(), 0
        yield self._send("response.created", response=self._shown)
        yield self._send("response.in_progress", response=self._shown)
        if self._given.return_progress:
            async for told in self._made.one.prompt_progress():
                more = {"prompt_progress": told, "timings": progress_timings(told)}
                yield self._send("response.in_progress", response=self._shown, **more)
        async for _, token, found in self._made.events():
            count += token is not None
            timed = {}
            if self._given.timings_per_token:
                timed = {"timings": running_timings(self._made.one, count, begin)}
            for one in found:
                for written in self._written(one, timed):
                    yield written
        for written in self._closed():
            yield written
        if not self._items:
            for written in self._begun(_message(new_id("msg_"), None, "in_progress")):
                yield written
            for written in self._closed():
                yield written
        whole = _whole(self._made, self._shown, self._items)
        keep(whole)
        kind = f"response.{whole['status']}"
        yield self._send(kind, response=whole, timings=timings(self._made.results[0]))

    def _written(self, one: Any, timed: dict[str, Any]) -> list[bytes]:
        found: list[bytes] = []
        if isinstance(one, ContentDelta | ReasoningDelta):
            text = isinstance(one, ContentDelta)
            if self._open.get("type") != ("message" if text else "reasoning"):
                found += self._closed()
                made = _message if text else _reasoning
                found += self._begun(made(new_id("msg_" if text else "rs_"), None, "in_progress"))
            self._open["so_far"] += one.text
            kind = "response.output_text.delta" if text else "response.reasoning_text.delta"
            logprobs: dict[str, Any] = {"logprobs": []} if text else {}
            place = {**self._place(), "content_index": 0}
            found.append(self._send(kind, **place, delta=one.text, **logprobs, **timed))
        elif isinstance(one, ToolCallBegin):
            found += self._closed()
            found += self._begun(_call(new_id("fc_"), one.id, one.name, "", "in_progress"))
        elif isinstance(one, ToolCallDelta):
            self._open["so_far"] += one.text
            kind = "response.function_call_arguments.delta"
            found.append(self._send(kind, **self._place(), delta=one.text))
        elif isinstance(one, ToolCallEnd):
            found += self._closed()
        return found

    def _place(self) -> dict[str, Any]:
        return {"item_id": self._open["item"]["id"], "output_index": len(self._items)}

    def _begun(self, item: dict[str, Any]) -> list[bytes]:
        self._open = {"type": item["type"], "item": item, "so_far": ""}
        found = [self._send("response.output_item.added", output_index=len(self._items), item=item)]
        if item["type"] == "message":
            place = {**self._place(), "content_index": 0}
            found.append(self._send("response.content_part.added", **place, part=_part("")))
        return found

    def _closed(self) -> list[bytes]:
        """End the item that is being written, if there is one."""
        if not self._open:
            return []
        item, text, place = self._open["item"], self._open["so_far"], self._place()
        found: list[bytes] = []
        if item["type"] == "message":
            done, at = _message(item["id"], text), {**place, "content_index": 0}
            found.append(self._send("response.output_text.done", **at, text=text, logprobs=[]))
            found.append(self._send("response.content_part.done", **at, part=_part(text)))
        elif item["type"] == "reasoning":
            done = _reasoning(item["id"], text)
            found.append(self._send("response.reasoning_text.done", **place, content_index=0, text=text))
        else:
            done = _call(item["id"], item["call_id"], item["name"], text)
            kind = "response.function_call_arguments.done"
            found.append(self._send(kind, **place, name=item["name"], arguments=text))
        found.append(self._send("response.output_item.done", output_index=len(self._items), item=done))
        self._items.append(done)
        self._open = {}
        return found
