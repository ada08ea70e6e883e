"""Tools in the messages of a template that knows none: their description, and calls and results as text.

The description decides whether a model calls where it should, and what it answers where it should not
(decision 96). Knows messages, tools and the syntax of calls; nothing of templates.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from graphml.api.tools import Tool
from graphml.text.answers.call_syntax import CallSyntax
from graphml.text.messages import Message


def with_tools_described(
    messages: Sequence[Message],
    tools: Sequence[Tool],
    syntax: CallSyntax,
    forced: bool,
    controls: Callable[[str], Collection[str]],
) -> list[Message]:
    """The conversation with its tools described before the first user's text.

    Calls become the assistant's text, in the form that it is to answer in, results a message of the user.
    messages, tools: with fenced texts. forced: whether these tools must be called. controls: the control
    tokens that a text spells.
    """
    only = forced and len(tools) == 1
    described = _one_described(tools[0]) if only else _all_described(tools, syntax, controls)
    description = described if tools else ""
    conversation: list[Message] = []
    results: Message | None = None
    for message in messages:
        if message["role"] == "tool":
            what = message.get("name") or _called(messages, message.get("tool_call_id", "")) or "the tool"
            result = f"Result of {what}: {message['content']}"
            if results is None:
                results = {"role": "user", "content": result}
                conversation.append(results)
            else:
                results["content"] += "\n" + result
            continue
        if results is not None and message["role"] == "user":  # templates want roles to alternate
            results["content"] += "\n\n" + message["content"]
            continue
        results = None
        if message.get("tool_calls"):
            others = {key: value for key, value in message.items() if key != "tool_calls"}
            conversation.append({**others, "content": written_calls(message, syntax, tools)})
        else:
            conversation.append(dict(message))
    first = next((message for message in conversation if message["role"] == "user"), None)
    if first is None and tools:
        first = {"role": "user", "content": ""}
        conversation.insert(1 if conversation and conversation[0]["role"] == "system" else 0, first)
    if first is not None and description:
        first["content"] = "\n\n".join(text for text in (description, first["content"]) if text)
    return conversation


def _all_described(
    tools: Sequence[Tool], syntax: CallSyntax, controls: Callable[[str], Collection[str]]
) -> str:
    described = "\n".join(_text(tool.as_openai()["function"]) for tool in tools)
    call = syntax.form("NAME").replace('"NAME"', "NAME")
    if not syntax.alone:
        call = syntax.begin + call + syntax.end
    if controls(call):  # which the model knows; written as text they would be none
        return f"Tools:\n{described}"
    what = "a JSON object" if call.startswith("{") else "this"
    return f"Tools:\n{described}\nIf a tool is needed, answer with {what} alone: {call}"


def _one_described(tool: Tool) -> str:
    """The only tool that may be called, which must be: its name and its parameters are forced text."""
    properties = tool.parameters.get("properties")
    named = properties.items() if isinstance(properties, Mapping) else ()
    lines = [
        f"{name}: {schema['description']}"
        for name, schema in named
        if isinstance(schema, Mapping) and schema.get("description")
    ]
    return "\n".join([tool.description, *lines] if tool.description else lines)


def _called(messages: Sequence[Message], id: str) -> str:
    """The tool of the call with this id."""
    calls = (call for message in messages for call in message.get("tool_calls", ()))
    return next((str(call["function"]["name"]) for call in calls if id and call["id"] == id), "")


def written_calls(message: Message, syntax: CallSyntax, tools: Sequence[Tool]) -> str:
    """What the assistant said and the calls that it made, as the format writes them."""
    functions = [call["function"] for call in message["tool_calls"]]
    calls = [(function["name"], function["arguments"]) for function in functions]
    text = syntax.written(calls, {tool.name: tool.parameters for tool in tools})
    return "\n\n".join(part for part in (message.get("content"), text) if part)


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
