"""Items of `/v1/responses`: what an answer consists of, and what a request said, as later calls list it.

Knows the forms of items; nothing of events or of how answers are made.
"""

from __future__ import annotations

from typing import Any

from graphml.server.engine.service import new_id
from graphml.text.answers import Answer

COMPLETED = "completed"
KEPT = ("status", "role", "content", "call_id", "name", "arguments", "output", "summary", "encrypted_content")
"""What is kept of an item that a request has."""


def text_part(text: str, logprobs: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """The text of a message. logprobs: entries of its tokens."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs or []}


def message_item(
    id: str, text: str | None, status: str = COMPLETED, logprobs: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    """A message of the assistant; without a text it has no content yet."""
    content = [] if text is None else [text_part(text, logprobs)]
    return {"type": "message", "id": id, "role": "assistant", "status": status, "content": content}


def reasoning_item(id: str, text: str | None, status: str = COMPLETED) -> dict[str, Any]:
    """What was thought before an answer."""
    content = [] if text is None else [{"type": "reasoning_text", "text": text}]
    return {"type": "reasoning", "id": id, "summary": [], "content": content, "status": status}


def call_item(id: str, call_id: str, name: str, arguments: str, status: str = COMPLETED) -> dict[str, Any]:
    """A call of a tool."""
    return {"type": "function_call", "id": id, "call_id": call_id, "name": name, "arguments": arguments,
            "status": status}  # fmt: skip


def output_items(answer: Answer, logprobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The items of an answer. logprobs: entries of its text's tokens."""
    items = [reasoning_item(new_id("rs_"), answer.reasoning)] if answer.reasoning else []
    if answer.content or not (answer.tool_calls or answer.cut):
        items.append(message_item(new_id("msg_"), answer.content, logprobs=logprobs))
    return items + [
        call_item(
            new_id("fc_"), call.id, call.name, call.arguments, COMPLETED if call.whole else "incomplete"
        )
        for call in (*answer.tool_calls, *answer.cut)
    ]


def input_items(request_input: str | list[Any]) -> list[dict[str, Any]]:
    """What a request said, each with an id; it was understood before."""
    items = [{"role": "user", "content": request_input}] if isinstance(request_input, str) else request_input
    return [_listed(item) for item in items]


def _listed(item: dict[str, Any]) -> dict[str, Any]:
    kind = item.get("type", "message")
    id = item.get("id")
    prefix = {"message": "msg_", "function_call": "fc_", "reasoning": "rs_"}.get(kind, "fco_")
    listed = {
        "status": COMPLETED,
        **{name: item[name] for name in KEPT if name in item},
        "type": kind,
        "id": id if isinstance(id, str) and id else new_id(prefix),
    }
    if kind == "reasoning":
        return {"summary": [], **listed}
    if kind != "message" or not isinstance(item.get("content"), str):
        return listed
    if item.get("role") == "assistant":
        return listed | {"content": [text_part(item["content"])]}
    return listed | {"content": [{"type": "input_text", "text": item["content"]}]}
