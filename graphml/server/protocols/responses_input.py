"""What a request to `/v1/responses` says, as a conversation.

Knows that protocol's input items; nothing of answers.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

from graphml.errors import json_type
from graphml.server.requests.request_fields import AtLeastOne, ChatCompletion, Count, Sampling, chat_of
from graphml.server.responses.api_errors import wrong_field


class Responses(Sampling, kw_only=True):
    """The fields of a request."""

    input: str | list[Any] = ""
    instructions: str | None = None
    max_output_tokens: AtLeastOne | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    metadata: dict[str, Any] | None = None
    text: dict[str, Any] | None = None
    reasoning: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    include: list[str] | None = None
    top_logprobs: Count | None = None
    background: bool | None = None
    conversation: str | dict[str, Any] | None = None
    prompt: dict[str, Any] | None = None


LOGPROBS = "message.output_text.logprobs"
"""What `include` names where log-probabilities are wanted."""


def as_chat(body: Responses, before: list[Any]) -> tuple[ChatCompletion, list[Any]]:
    """The request as a chat completion; and its messages without instructions, for later ones."""
    for name in ("background", "conversation", "prompt"):
        if getattr(body, name):
            raise wrong_field(name, "it is not supported")
    _check_metadata(body.metadata or {})
    items = [{"role": "user", "content": body.input}] if isinstance(body.input, str) else body.input
    messages = [*before, *_messages(items)]
    if not messages:
        raise wrong_field("input", "wanted a text, or at least one item; got an empty list")
    system = [{"role": "system", "content": body.instructions}] if body.instructions else []
    effort = (body.reasoning or {}).get("effort")
    if not isinstance(effort or "", str):
        raise wrong_field("reasoning", "wanted a text as effort")
    chat = chat_of(
        messages=[*system, *messages], max_tokens=body.max_output_tokens,
        response_format=_response_format(body.text), tools=_tools(body.tools),
        tool_choice=_tool_choice(body.tool_choice), parallel_tool_calls=body.parallel_tool_calls,
        reasoning_effort=effort, **_logprobs(body),
    )  # fmt: skip
    for name in Sampling.__struct_fields__:
        if getattr(chat, name) is None:
            setattr(chat, name, getattr(body, name))
    return chat, messages


def _check_metadata(metadata: dict[str, Any]) -> None:
    """ApiError 400 beyond OpenAI's limits: each event of a stream begins or ends with it."""
    short = all(
        isinstance(value, str) and len(value) <= 512 and len(name) <= 64 for name, value in metadata.items()
    )
    if len(metadata) > 16 or not short:
        raise wrong_field("metadata", "wanted at most 16 names of 64 characters, each with a text of 512")


def _logprobs(body: Responses) -> dict[str, Any]:
    wanted = LOGPROBS in (body.include or ())
    return {"logprobs": True, "top_logprobs": body.top_logprobs} if wanted else {}


def _messages(items: list[Any]) -> list[Any]:
    """Items as messages: reasoning, texts and calls of the assistant that follow each other are one turn."""
    messages: list[dict[str, Any]] = []
    for item in items:
        if not isinstance(item, dict):
            raise wrong_field("input", f"wanted items as objects, got {json_type(item)}")
        kind = item.get("type", "message")
        if kind == "message" and item.get("role") == "assistant":
            content = item.get("content") or []
            _assistant(messages)["content"] += content if isinstance(content, list) else [content]
        elif kind == "message":
            messages.append({"role": item.get("role"), "content": item.get("content")})
        elif kind == "reasoning":
            turn = _assistant(messages)
            thoughts = [thought for thought in (turn.get("reasoning_content"), _thought(item)) if thought]
            turn["reasoning_content"] = "\n\n".join(thoughts)
        elif isinstance(kind, str) and kind in CALLS:
            call = {
                "id": item.get("call_id") or item.get("id"),
                "type": "function",
                "function": CALLS[kind](item),
            }
            _assistant(messages).setdefault("tool_calls", []).append(call)
            if kind in MADE:
                messages.append(_result(call["id"], MADE[kind](item)))
        elif isinstance(kind, str) and kind.endswith("_call_output") and kind != SCREENSHOT:
            messages.append(_result(item.get("call_id") or item.get("id"), item.get("output", "")))
        elif kind not in LEFT_OUT:
            raise wrong_field("input", f"items of the type {kind!r:.40} are not supported")
    return messages


def _function(item: dict[str, Any]) -> dict[str, Any]:
    return {"name": item.get("name"), "arguments": item.get("arguments", "{}")}


CALLS: Final[dict[str, Callable[[dict[str, Any]], dict[str, Any]]]] = {
    "function_call": _function,
    "mcp_call": _function,
    "custom_tool_call": lambda item: {"name": item.get("name"), "arguments": {"input": item.get("input")}},
    "local_shell_call": lambda item: {"name": "local_shell", "arguments": item.get("action") or {}},
    "shell_call": lambda item: {"name": "shell", "arguments": item.get("action") or {}},
    "apply_patch_call": lambda item: {"name": "apply_patch", "arguments": item.get("operation") or {}},
    "code_interpreter_call": lambda item: {"name": "python", "arguments": {"code": item.get("code") or ""}},
}
"""From a call of each kind to a function's; they are not offered, but a history may have them."""
MADE: Final[dict[str, Callable[[dict[str, Any]], str]]] = {
    "mcp_call": lambda item: item.get("output") or item.get("error") or "",
    "code_interpreter_call": lambda item: _logs(item.get("outputs") or []),
}
"""The results of calls that another server has made, whose items hold them."""
LEFT_OUT: Final = (
    "web_search_call", "file_search_call", "tool_search_call", "tool_search_output", "image_generation_call",
    "mcp_list_tools", "mcp_approval_request", "mcp_approval_response", "compaction",
)  # fmt: skip
"""Items that have nothing that a model here could read."""
SCREENSHOT: Final = "computer_call_output"
"""An image, which is refused, and so is its call."""


def _logs(outputs: Any) -> str:
    """What code has printed."""
    parts = outputs if isinstance(outputs, list) else []
    return "".join(str(part.get("logs", "")) for part in parts if isinstance(part, dict))


def _result(id: Any, output: Any) -> dict[str, Any]:
    if isinstance(output, dict):
        output = json.dumps(output, ensure_ascii=False)
    return {"role": "tool", "tool_call_id": id, "content": output}


def _thought(item: dict[str, Any]) -> str:
    """The text of an item of reasoning, else its summary."""
    for name in ("content", "summary"):
        content = item.get(name) or []
        parts = content if isinstance(content, list) else [None]
        values = [part.get("text", "") if isinstance(part, dict) else None for part in parts]
        texts = [value for value in values if isinstance(value, str)]
        if len(texts) < len(values):
            raise wrong_field("input", f"wanted the {name} of reasoning as a list of parts with texts")
        if texts:
            return "".join(texts)
    return ""


def _assistant(messages: list[dict[str, Any]]) -> dict[str, Any]:
    if not messages or messages[-1].get("role") != "assistant":
        messages.append({"role": "assistant", "content": []})
    return messages[-1]


def _response_format(text: dict[str, Any] | None) -> dict[str, Any] | None:
    form = (text or {}).get("format")
    if form is not None and not isinstance(form, dict):
        raise wrong_field("text", f"wanted an object as format, got {json_type(form)}")
    if form is None or form.get("type") == "text":
        return None
    if form.get("type") == "json_schema":
        return {"type": "json_schema", "json_schema": {"schema": form.get("schema", {})}}
    return form


def _tools(tools: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
    keys = ("name", "description", "parameters", "strict")
    return tools and [
        {"type": "function", "function": {key: tool[key] for key in keys if key in tool}}
        if tool.get("type") == "function"
        else tool
        for tool in tools
    ]


def _tool_choice(choice: str | dict[str, Any] | None) -> str | dict[str, Any] | None:
    if isinstance(choice, dict) and choice.get("type") == "function":
        return {"type": "function", "function": {"name": choice.get("name")}}
    if (
        isinstance(choice, dict)
        and choice.get("type") == "allowed_tools"
        and isinstance(choice.get("tools"), list)
    ):
        named = [tool.get("name") if isinstance(tool, dict) else None for tool in choice["tools"]]
        tools = [{"type": "function", "function": {"name": name}} for name in named]
        return {"type": "allowed_tools", "allowed_tools": {"mode": choice.get("mode"), "tools": tools}}
    return choice
