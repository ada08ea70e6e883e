"""`/v1/messages` and `/v1/messages/count_tokens`: Anthropic's protocol.

Knows that protocol, and turns it into a conversation; see https://docs.anthropic.com/en/api/messages.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Annotated, Any

from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response

from graphml.server.answers import Answering, answering
from graphml.server.api_errors import ApiError, wrong_field
from graphml.server.conversations import conversation_of
from graphml.server.event_stream import EventStream, event
from graphml.server.json_response import gone, json_response
from graphml.server.llama_completion import stopping_word
from graphml.server.openai_chat import ended
from graphml.server.request_body import body_of
from graphml.server.request_fields import (
    INT_MAX,
    AtLeastOne,
    ChatCompletion,
    NotNegative,
    Probability,
)
from graphml.server.service import Service, new_id
from graphml.text.answers import ContentDelta, ReasoningDelta, ToolCallBegin, ToolCallDelta

BILLING = "x-anthropic-billing-header:"
"""What Claude Code puts first into the system prompt: it changes, so that no prefix would be found again."""


class Messages(Struct, kw_only=True):
    """The fields of a request."""

    messages: list[Any]
    max_tokens: AtLeastOne | None = None
    model: str | None = None
    system: str | list[Any] | None = None
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    temperature: NotNegative | None = None
    top_p: Probability | None = None
    top_k: Annotated[int, Meta(ge=-1, le=INT_MAX)] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None


async def messages(service: Service, request: Request) -> Response | EventStream:
    """`POST /v1/messages`."""
    given = await body_of(service, request, Messages)
    made = await answering(service, request, as_chat(given))
    shown = {"id": new_id("msg_"), "type": "message", "role": "assistant", "model": service.name}
    if given.stream:
        events = _events(service, made, shown)
        return service.stream(request, events, made.cancel, anthropic=True)
    if not await ended(request, made.finished(), made.cancel):
        return gone()
    found, result = made.readers[0].answer, made.results[0]
    content: list[dict[str, Any]] = []
    if found.reasoning:
        content.append({"type": "thinking", "thinking": found.reasoning, "signature": ""})
    if found.content or not (found.reasoning or found.tool_calls):
        content.append({"type": "text", "text": found.content})
    for one in found.tool_calls:
        content.append({"type": "tool_use", "id": one.id, "name": one.name, "input": one.values()})
    counts = {**_read(made), "output_tokens": result.n_gen}
    return json_response({**shown, "content": content, **_end(service, made), "usage": counts})


async def count_tokens(service: Service, request: Request) -> Response:
    """`POST /v1/messages/count_tokens`."""
    given = as_chat(await body_of(service, request, Messages))
    found = await service.access.in_thread(conversation_of, service, given)
    return json_response({"input_tokens": len(found.ids)})


def _read(made: Answering) -> dict[str, int]:
    cached = max(0, made.one.sequences[0].n_cached)
    return {"input_tokens": len(made.one.ids) - cached, "cache_read_input_tokens": cached}


def _end(service: Service, made: Answering) -> dict[str, Any]:
    word = stopping_word(service, made.results[0], made.one.settings)
    reasons = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
    reason = "stop_sequence" if word else reasons[made.reason(0)]
    return {"stop_reason": reason, "stop_sequence": word or None}


async def _events(service: Service, made: Answering, shown: dict[str, Any]) -> AsyncGenerator[bytes, None]:
    def send(kind: str, **data: Any) -> bytes:
        return event({"type": kind, **data}, kind)

    blocks, kind, begun = -1, "", False
    async for _, _, found in made.events():
        if not begun:
            begun = True
            first: dict[str, Any] = {**shown, "content": [], "stop_reason": None, "stop_sequence": None}
            yield send("message_start", message={**first, "usage": {**_read(made), "output_tokens": 0}})
        for one in found:
            started, delta = _block(one)
            if delta is None and started is None:
                continue
            wanted = started["type"] if started else kind
            if wanted != kind or isinstance(one, ToolCallBegin):
                if kind:
                    yield send("content_block_stop", index=blocks)
                blocks, kind = blocks + 1, wanted
                yield send("content_block_start", index=blocks, content_block=started)
            if delta is not None:
                yield send("content_block_delta", index=blocks, delta=delta)
    if not kind:
        blocks = 0
        yield send("content_block_start", index=0, content_block={"type": "text", "text": ""})
    if kind == "thinking":
        yield send("content_block_delta", index=blocks, delta={"type": "signature_delta", "signature": ""})
    yield send("content_block_stop", index=blocks)
    counts = {**_read(made), "output_tokens": made.results[0].n_gen}
    yield send("message_delta", delta=_end(service, made), usage=counts)
    yield send("message_stop")


def _block(one: Any) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """The block that an event belongs to, and what it adds to it."""
    if isinstance(one, ContentDelta):
        return {"type": "text", "text": ""}, {"type": "text_delta", "text": one.text}
    if isinstance(one, ReasoningDelta):
        begin = {"type": "thinking", "thinking": "", "signature": ""}
        return begin, {"type": "thinking_delta", "thinking": one.text}
    if isinstance(one, ToolCallBegin):
        return {"type": "tool_use", "id": one.id, "name": one.name, "input": {}}, None
    if isinstance(one, ToolCallDelta):
        return None, {"type": "input_json_delta", "partial_json": one.text}
    return None, None


def as_chat(given: Messages) -> ChatCompletion:
    """The request as one of OpenAI's protocol."""
    found: list[dict[str, Any]] = []
    system = _system(given.system)
    if system:
        found.append({"role": "system", "content": system})
    for index, one in enumerate(given.messages):
        found += _turned(index, one)
    tools = given.tools and [_tool(one) for one in given.tools]
    return ChatCompletion(
        messages=found, max_tokens=given.max_tokens, stream=given.stream, stop=given.stop_sequences,
        temperature=given.temperature, top_p=given.top_p, top_k=given.top_k, tools=tools,
        tool_choice=_tool_choice(given.tool_choice), chat_template_kwargs=_thinking(given.thinking),
        parallel_tool_calls=not (given.tool_choice or {}).get("disable_parallel_tool_use", False),
        **_output(given.output_config or {}),
    )  # fmt: skip


def _system(given: str | list[Any] | None) -> str:
    parts = [{"type": "text", "text": given}] if isinstance(given, str) else given or []
    texts = [one.get("text", "") for one in parts if isinstance(one, dict)]
    if not all(isinstance(one, str) for one in texts):
        raise wrong_field("system", "wanted a text, or parts with texts")
    return "\n".join(one for one in texts if one and not one.lstrip().lower().startswith(BILLING))


def _turned(index: int, message: Any) -> list[dict[str, Any]]:
    """A message as OpenAI's: results of tools are messages of their own."""
    where = f"messages[{index}]"
    if not isinstance(message, dict):
        raise wrong_field("messages", f"{where}: wanted an object, got {type(message).__name__}")
    content, role = message.get("content"), message.get("role")
    if not isinstance(content, list):
        return [{"role": role, "content": content}]
    texts: list[Any] = []
    calls: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    reasoning = ""
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "tool_use":
            function = {"name": part.get("name"), "arguments": json.dumps(part.get("input", {}))}
            calls.append({"id": part.get("id"), "type": "function", "function": function})
        elif kind == "tool_result":
            result = part.get("content", "")
            results.append({"role": "tool", "tool_call_id": part.get("tool_use_id"), "content": result or ""})
        elif kind in ("thinking", "redacted_thinking"):
            thought = part.get("thinking", "")
            if not isinstance(thought, str):
                raise wrong_field("messages", f"{where}.content: wanted a text as thinking")
            reasoning += thought
        else:
            texts.append(part)
    turned: dict[str, Any] = {"role": role, "content": texts}
    if calls:
        turned["tool_calls"] = calls
    if reasoning:
        turned["reasoning_content"] = reasoning
    return [*results, turned] if texts or calls or not results else results


def _tool(given: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(given.get("name"), str):
        raise ApiError(400, "Field 'tools': wanted a name in each", param="tools")
    function = {"name": given["name"], "description": given.get("description", ""),
                "parameters": given.get("input_schema", {"type": "object"})}  # fmt: skip
    return {"type": "function", "function": function}


def _tool_choice(given: dict[str, Any] | None) -> str | dict[str, Any] | None:
    kind = (given or {}).get("type")
    if kind == "tool":
        return {"type": "function", "function": {"name": (given or {}).get("name")}}
    if kind is None:
        return None
    choices = {"any": "required", "none": "none", "auto": "auto"}
    if not isinstance(kind, str) or kind not in choices:
        raise wrong_field("tool_choice", f"wanted the type auto, any, tool or none; got {kind!r:.40}")
    return choices[kind]


def _output(given: dict[str, Any]) -> dict[str, Any]:
    """What `output_config` says of the answer's form, and of how long the model thinks."""
    found: dict[str, Any] = {}
    form, effort = given.get("format"), given.get("effort")
    if form is not None:
        if not isinstance(form, dict) or form.get("type") != "json_schema":
            raise wrong_field("output_config", "wanted a format of the type json_schema")
        found["response_format"] = {"type": "json_schema", "json_schema": {"schema": form.get("schema")}}
    if effort is not None:
        if not isinstance(effort, str):
            raise wrong_field("output_config", "wanted a text as effort")
        found["reasoning_effort"] = effort
    return found


def _thinking(given: dict[str, Any] | None) -> dict[str, Any] | None:
    kind = (given or {}).get("type")
    return {"enable_thinking": kind != "disabled"} if kind else None
