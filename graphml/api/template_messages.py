"""Messages as chat templates want them, whose conventions differ: arguments of calls, missing content, names.

Knows what templates read; nothing of tokens or sessions.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from graphml.api.call_forms import FORMS, CallForm, Write
from graphml.api.tools import Tool
from graphml.text.answers import ReasoningMarks
from graphml.text.fenced_text import without_meaning
from graphml.text.messages import Message

TRUSTED_ROLES = ("system",)


def tool_variables(wanted: Collection[str], tools: Sequence[Tool], now: datetime) -> dict[str, str]:
    """Variables that Firefunction's template reads, as its makers set them: `functions` and `datetime`.

    wanted: the names that a template reads. The day alone is told, so that prompts begin alike for long.
    """
    functions = [tool.as_openai()["function"] for tool in tools]
    known = {"functions": json.dumps(functions, indent=4), "datetime": now.strftime("%b %d %Y")}
    return {name: value for name, value in known.items() if name in wanted}


def fenced_messages(messages: Sequence[Message], fence: Callable[[str], str]) -> list[Message]:
    """The messages with what spells tokens of a meaning fenced off, in all that users, models and tools say.

    Arguments of calls become mappings, so that a template's JSON keeps the fences.
    """
    return [
        {**message, "content": without_meaning(message["content"])}
        if message["role"] in TRUSTED_ROLES
        else _fenced_message(message, fence)
        for message in messages
    ]


def _fenced_message(message: Message, fence: Callable[[str], str]) -> Message:
    fenced = {key: value if key in ("role", "tool_calls") else fence(value) for key, value in message.items()}
    if "tool_calls" in message:
        fenced["tool_calls"] = [
            {
                **fenced_value(call, fence),
                "type": "function",
                "function": {
                    "name": fence(call["function"]["name"]),
                    "arguments": fenced_value(json.loads(call["function"]["arguments"]), fence),
                },
            }
            for call in message["tool_calls"]
        ]
    return fenced


def fenced_value(value: Any, fence: Callable[[str], str]) -> Any:
    """A value of JSON, or of Python's like it, with all its texts fenced, names too."""
    if isinstance(value, str):
        return fence(value)
    if isinstance(value, Mapping):
        return {fenced_value(name, fence): fenced_value(item, fence) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [fenced_value(item, fence) for item in value]
    return value


def fenced_tool(tool: Tool, fence: Callable[[str], str]) -> Tool:
    """The description of a tool with all its texts fenced."""
    return Tool(fence(tool.name), fence(tool.description), fenced_value(tool.parameters, fence))


def for_template(
    messages: Sequence[Message],
    source: str,
    forms: Sequence[CallForm] = FORMS,
    write: Write = lambda message: None,
    system_role: bool = True,
) -> Iterator[list[Message]]:
    """The messages in the forms that a template may want, the likeliest first; others are for where it fails.

    forms: of calls, the likeliest first; write: as of `CallForm`. Where a template takes no system message
    behind others, the first one has the texts of all; where it has no system role, the first user's message
    begins with them. system_role: False where that is known.
    """
    plain = _with_ids([_named(message, source) for message in messages])
    if not any(message.get("tool_calls") for message in plain):
        forms = forms[:1]
    for arranged in _arranged(plain, system_role):
        for form in forms:
            if (formed := form.formed(arranged, write)) is not None:
                yield formed


def _arranged(messages: list[Message], system_role: bool) -> Iterator[list[Message]]:
    """The messages as they are, with one system message, and without any."""
    texts = system_texts(messages)
    if system_role or not texts:
        yield messages
    if not texts:
        return
    system = {"role": "system", "content": "\n\n".join(texts)}
    others = [message for message in messages if message["role"] not in TRUSTED_ROLES]
    if system_role and later_systems(messages):
        yield [system, *others]
    if not others or others[0]["role"] != "user":  # turns alternate from a user's on
        yield [{**system, "role": "user"}, *others]
    else:
        yield [{**others[0], "content": f"{system['content']}\n\n{others[0]['content']}"}, *others[1:]]


def system_texts(messages: Sequence[Message]) -> list[str]:
    """The texts of the system messages."""
    return [message["content"] for message in messages if message["role"] in TRUSTED_ROLES]


def later_systems(messages: Sequence[Message]) -> bool:
    """Whether a system message is not the first message."""
    return any(message["role"] in TRUSTED_ROLES for message in messages[1:])


def reasoning_apart(message: Message, marks: ReasoningMarks | None) -> Message:
    """An assistant's message whose content begins with reasoning between marks, with that apart.

    Where the mark of the end is missing, all of it is reasoning.
    """
    content = message["content"].lstrip()
    if marks is None or message["role"] != "assistant" or not content.startswith(marks.open):
        return message
    reasoning, _, content = content[len(marks.open) :].partition(marks.close)
    before = message.get("reasoning_content", "")
    return {**message, "reasoning_content": before + reasoning.strip("\n"), "content": content.lstrip("\n")}


def _named(message: Message, source: str) -> Message:
    """The message with its reasoning by the names that the template reads, too.

    gpt-oss's template wants no content beside reasoning and a call.
    """
    if "reasoning_content" not in message:
        return message
    reasoning = message["reasoning_content"]
    if message.get("tool_calls") and "<|channel|>" in source:
        reasoning = "\n\n".join(text for text in (reasoning, message["content"]) if text)
        message = {**message, "content": ""}
    return {**message, **dict.fromkeys(_REASONING.findall(source), reasoning)}


_REASONING: Final = re.compile(r"\b(?:message|msg|m)(?:\.|\[['\"]|\.get\(['\"])(reasoning|thinking)\b")


def reads_reasoning(source: str) -> bool:
    """Whether a template reads reasoning apart from the content."""
    return "reasoning_content" in source or _REASONING.search(source) is not None


def _with_ids(messages: Sequence[Message]) -> list[Message]:
    """The messages with an id for each call that has none, and for its result, found by its place."""
    used = {call.get("id") for message in messages for call in message.get("tool_calls") or ()}
    used |= {message.get("tool_call_id") for message in messages}
    free = (id for id in map("call_{}".format, itertools.count()) if id not in used)
    waiting, paired = list[str](), list[Message]()
    for message in messages:
        if message.get("tool_calls"):
            calls = [call if call.get("id") else {**call, "id": next(free)} for call in message["tool_calls"]]
            message = {**message, "tool_calls": calls}
            waiting = [call["id"] for call in calls]
        elif message["role"] == "tool":
            id = message.get("tool_call_id") or (waiting[0] if waiting else next(free))
            message = {**message, "tool_call_id": id}
            if id in waiting:
                waiting.remove(id)
        paired.append(message)
    return paired
