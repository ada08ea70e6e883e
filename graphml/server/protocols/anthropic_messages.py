"""`/v1/messages` and `/v1/messages/count_tokens`: Anthropic's protocol.

Knows that protocol, and turns it into a conversation; see https://docs.anthropic.com/en/api/messages.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Annotated, Any, Final

from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response

from graphml.errors import UsageError, json_type
from graphml.server.engine.service import Service, new_id
from graphml.server.protocols.answers import Answering, answering
from graphml.server.protocols.conversations import conversation_of
from graphml.server.protocols.llama_completion import stopping_word
from graphml.server.protocols.openai_chat import ended
from graphml.server.protocols.request_body import body_of, off_loop
from graphml.server.requests.request_fields import (
    INT_MAX,
    AtLeastOne,
    ChatCompletion,
    NotNegative,
    Probability,
    chat_of,
)
from graphml.server.responses.api_errors import ApiError, wrong_field
from graphml.server.responses.event_stream import EventStream, event
from graphml.server.responses.json_response import gone, json_response
from graphml.text.answers import ContentDelta, ReasoningDelta, ToolCallBegin, ToolCallDelta
from graphml.text.messages import parts_of

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
    output_format: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None


async def messages(service: Service, request: Request) -> Response | EventStream:
    """`POST /v1/messages`."""
    body = await body_of(service, request, Messages)
    reply = await answering(service, request, await off_loop(request, as_chat, body))
    shown = {"id": new_id("msg_"), "type": "message", "role": "assistant", "model": service.answers_as}
    if body.stream:
        events = _events(service, reply, shown)
        return service.shared.stream(request, events, reply.cancel, style="anthropic")
    if not await ended(request, reply.finished(), reply.cancel):
        return gone()
    answer = reply.readers[0].answer
    content: list[dict[str, Any]] = []
    if answer.reasoning:
        content.append({"type": "thinking", "thinking": answer.reasoning, "signature": ""})
    if answer.content or not (answer.reasoning or answer.tool_calls or answer.cut):
        content.append({"type": "text", "text": answer.content})
    for call in (*answer.tool_calls, *answer.cut):
        content.append({"type": "tool_use", "id": call.id, "name": call.name, "input": call.values()})
    counts = {**_read(reply), **_written(reply)}
    return json_response({**shown, "content": content, **_end(service, reply), "usage": counts})


async def count_tokens(service: Service, request: Request) -> Response:
    """`POST /v1/messages/count_tokens`."""
    chat = await off_loop(request, as_chat, await body_of(service, request, Messages))
    prompt = await service.access.in_thread(request, conversation_of, service, chat)
    return json_response({"input_tokens": len(prompt.ids)})


def _read(reply: Answering) -> dict[str, Any]:
    cached = max(0, reply.generation.sequences[0].n_cached)
    return {"input_tokens": len(reply.generation.ids) - cached, "cache_read_input_tokens": cached}


def _written(reply: Answering) -> dict[str, Any]:
    details = {"output_tokens_details": {"thinking_tokens": reply.n_reasoning}}
    return {"output_tokens": reply.results[0].n_gen, **details}


def _end(service: Service, reply: Answering) -> dict[str, Any]:
    word = stopping_word(service, reply.results[0], reply.generation.settings)
    reasons = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
    reason = "stop_sequence" if word else reasons[reply.reason(0)]
    return {"stop_reason": reason, "stop_sequence": word or None}


async def _events(service: Service, reply: Answering, shown: dict[str, Any]) -> AsyncGenerator[bytes, None]:
    def send(kind: str, **data: Any) -> bytes:
        return event({"type": kind, **data}, kind)

    blocks, kind, begun = -1, "", False
    async for _, _, events in reply.events():
        if not begun:
            begun = True
            first: dict[str, Any] = {**shown, "content": [], "stop_reason": None, "stop_sequence": None}
            yield send("message_start", message={**first, "usage": {**_read(reply), "output_tokens": 0}})
        for part in events:
            started, delta = _block(part)
            if delta is None and started is None:
                continue
            wanted = started["type"] if started else kind
            if wanted != kind or isinstance(part, ToolCallBegin):
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
    counts = {**_read(reply), **_written(reply)}
    yield send("message_delta", delta=_end(service, reply), usage=counts)
    yield send("message_stop")


def _block(part: Any) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """The block that an event belongs to, and what it adds to it."""
    if isinstance(part, ContentDelta):
        return {"type": "text", "text": ""}, {"type": "text_delta", "text": part.text}
    if isinstance(part, ReasoningDelta):
        begin = {"type": "thinking", "thinking": "", "signature": ""}
        return begin, {"type": "thinking_delta", "thinking": part.text}
    if isinstance(part, ToolCallBegin):
        return {"type": "tool_use", "id": part.id, "name": part.name, "input": {}}, None
    if isinstance(part, ToolCallDelta):
        return None, {"type": "input_json_delta", "partial_json": part.text}
    return None, None


def as_chat(body: Messages) -> ChatCompletion:
    """The request as one of OpenAI's protocol."""
    messages: list[dict[str, Any]] = []
    system = _system(body.system)
    if system:
        messages.append({"role": "system", "content": system})
    for index, message in enumerate(body.messages):
        messages += _turned(index, message)
    tools = body.tools and [_tool(tool) for tool in body.tools]
    return chat_of(
        messages=messages, max_tokens=body.max_tokens, stream=body.stream, stop=body.stop_sequences,
        temperature=body.temperature, top_p=body.top_p, top_k=body.top_k, tools=tools,
        tool_choice=_tool_choice(body.tool_choice), chat_template_kwargs=_thinking(body.thinking),
        thinking_budget_tokens=_budget(body.thinking), parallel_tool_calls=_parallel(body.tool_choice),
        **_output({"format": body.output_format, **(body.output_config or {})}),
    )  # fmt: skip


def _system(system: str | list[Any] | None) -> str:
    parts = [{"type": "text", "text": system}] if isinstance(system, str) else system or []
    try:
        texts = [parts_of(f"[{index}]", [_text_part(part)], "system")[0] for index, part in enumerate(parts)]
    except UsageError as error:
        raise wrong_field("system", str(error)) from None
    return "\n".join(text for text in texts if text and not text.lstrip().lower().startswith(BILLING))


def _turned(index: int, message: Any) -> list[dict[str, Any]]:
    """A message as OpenAI's: results of tools are messages of their own."""
    where = f"messages[{index}]"
    if not isinstance(message, dict):
        raise wrong_field("messages", f"{where}: wanted an object, got {json_type(message)}")
    content, role = message.get("content"), message.get("role")
    if not isinstance(content, list):
        return [{"role": role, "content": content}]
    turned: list[dict[str, Any]] = []
    turn: dict[str, Any] = {"role": role, "content": []}
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in CALLS:
            function = {"name": part.get("name"), "arguments": json.dumps(part.get("input", {}))}
            call = {"id": part.get("id"), "type": "function", "function": function}
            turn.setdefault("tool_calls", []).append(call)
        elif isinstance(kind, str) and kind.endswith("tool_result"):
            if role == "assistant":  # of a tool that Anthropic's servers have run
                turned.append(turn)
                turn = {"role": role, "content": []}
            turned.append(_result(part))
        elif kind in ("thinking", "redacted_thinking"):
            thought = part.get("thinking", "")
            if not isinstance(thought, str):
                raise wrong_field("messages", f"{where}.content: wanted a text as thinking")
            turn["reasoning_content"] = turn.get("reasoning_content", "") + thought
        elif kind != "compaction" or part.get("content") is not None:  # one that failed has none
            turn["content"].append(_text_part(part))
    return turned if turned and len(turn) == 2 and not turn["content"] else [*turned, turn]


CALLS: Final = ("tool_use", "server_tool_use", "mcp_tool_use")


def _result(part: dict[str, Any]) -> dict[str, Any]:
    """A tool's result as a message: its text parts, or what there is as JSON."""
    content = part.get("content") or ""
    if isinstance(content, list) and part["type"] in ("tool_result", "mcp_tool_result"):
        content = [_text_part(item) for item in content]
    elif not isinstance(content, str):
        content = json.dumps(content, ensure_ascii=False)
    return {"role": "tool", "tool_call_id": part.get("tool_use_id"), "content": content}


def _text_part(part: Any) -> Any:
    """What is text (a document, a result of a search, a summary) as a part with that; others as they are."""
    kind = part.get("type") if isinstance(part, dict) else None
    source = part.get("source") if kind == "document" else None
    if isinstance(source, dict) and source.get("type") == "text":
        content = source.get("data")
    elif isinstance(source, dict) and source.get("type") == "content":
        content = source.get("content")
    elif kind in ("search_result", "compaction"):
        content = part.get("content")
    elif kind in ("tool_reference", "container_upload"):  # an id
        return {"type": "text", "text": json.dumps(part, ensure_ascii=False)}
    else:
        return part
    items = content if isinstance(content, list) else [{"text": content}]
    texts = [item.get("text") if isinstance(item, dict) else None for item in items]
    lines = [text for text in (part.get("title"), *texts) if isinstance(text, str)]
    if None in texts or len(lines) < len(texts):
        return part  # which is refused as what it is
    return {"type": "text", "text": "\n".join(lines)}


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    """A function as OpenAI's; a tool of a type that Anthropic's servers or clients know is as it was."""
    if tool.get("type") not in (None, "custom"):
        return tool
    if not isinstance(tool.get("name"), str):
        raise ApiError(400, "Field 'tools': wanted a name in each", param="tools")
    function = {"name": tool["name"], "description": tool.get("description", ""),
                "parameters": tool.get("input_schema", {"type": "object"})}  # fmt: skip
    return {"type": "function", "function": function}


def _tool_choice(choice: dict[str, Any] | None) -> str | dict[str, Any] | None:
    kind = (choice or {}).get("type")
    if kind == "tool":
        return {"type": "function", "function": {"name": (choice or {}).get("name")}}
    if kind is None:
        return None
    choices = {"any": "required", "none": "none", "auto": "auto"}
    if not isinstance(kind, str) or kind not in choices:
        raise wrong_field("tool_choice", f"wanted the type auto, any, tool or none; got {kind!r:.40}")
    return choices[kind]


def _parallel(choice: dict[str, Any] | None) -> bool | None:
    single = (choice or {}).get("disable_parallel_tool_use")
    if not isinstance(single, bool | None):
        raise wrong_field("tool_choice", "wanted true or false as disable_parallel_tool_use")
    return None if single is None else not single


def _output(config: dict[str, Any]) -> dict[str, Any]:
    """What `output_config` says of the answer's form, and of how long the model thinks."""
    fields: dict[str, Any] = {}
    form, effort = config.get("format"), config.get("effort")
    if form is not None:
        if not isinstance(form, dict) or form.get("type") != "json_schema":
            raise wrong_field("output_config", "wanted a format of the type json_schema")
        fields["response_format"] = {"type": "json_schema", "json_schema": {"schema": form.get("schema")}}
    if effort is not None:
        if not isinstance(effort, str):
            raise wrong_field("output_config", "wanted a text as effort")
        fields["reasoning_effort"] = effort
    return fields


def _budget(thinking: dict[str, Any] | None) -> int | None:
    """The tokens of thinking that a request allows."""
    budget = (thinking or {}).get("budget_tokens")
    if budget is None or (thinking or {}).get("type") != "enabled":
        return None
    if not isinstance(budget, int) or isinstance(budget, bool) or budget < 0:
        raise wrong_field("thinking", f"wanted tokens as budget_tokens; got {budget!r:.40}")
    return budget


def _thinking(thinking: dict[str, Any] | None) -> dict[str, Any] | None:
    kind = (thinking or {}).get("type")
    if kind not in (None, "enabled", "disabled", "adaptive"):
        raise wrong_field("thinking", f"wanted the type enabled, disabled or adaptive; got {kind!r:.40}")
    return {"enable_thinking": kind != "disabled"} if kind else None
