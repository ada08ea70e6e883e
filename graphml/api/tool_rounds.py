"""The loop of answers and tool calls: functions are run, results are told, until an answer calls none.

Knows tools and events; how an answer is generated, its caller knows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

from graphml.api.chat_prompt import AUTO, NONE, ChatSettings
from graphml.errors import UsageError
from graphml.options.argument_checks import whole_number
from graphml.text.answers import Event, ToolCall
from graphml.text.messages import Message

LOG = logging.getLogger(__name__)
MAX_ROUNDS = 8
REFUSED = "Error: the user refused this call"
Confirm: TypeAlias = Callable[[ToolCall], bool]
"""Asked before a function is run: whether it may be."""


@dataclass(frozen=True)
class ToolResult:
    """A function has run: the number and id of its call, its name, and its result as the model reads it."""

    index: int
    id: str
    name: str
    content: str

    def message(self) -> Message:
        """As a message of the conversation."""
        return {"role": "tool", "content": self.content, "name": self.name, "tool_call_id": self.id}


ChatEvent: TypeAlias = Event | ToolResult


def checked_rounds(value: object) -> int:
    """The most rounds of calls; UsageError unless it is a whole number of at least 1."""
    number = whole_number(value)
    if number is None or number < 1:
        raise UsageError(f"max_rounds: wanted a whole number of at least 1, got {value!r:.80}")
    return number


def rounds(
    settings: ChatSettings,
    most: int,
    answer: Callable[[ChatSettings], Iterator[Event]],
    calls: Callable[[], list[ToolCall]],
    add: Callable[[Message], None],
    confirm: Confirm | None = None,
) -> Generator[ChatEvent, None, bool]:
    """The events of one answer after another, with the results of the tools that each of them calls.

    Returns whether all rounds were used up: most of them have calls, and the answer after them is asked for
    without tools, so that it may spell a call as text; a warning is logged. A choice of tools counts for the
    first answer. calls: those of the latest answer; add: appends a message. Calls of a tool without a
    function are left to the caller, who adds the results: then this ends. confirm: None runs every call; the
    model is told of those that are refused.
    """
    functions = {tool.name: tool for tool in settings.tools}
    for number in range(most + 1):
        if number == most and settings.tool_choice != NONE:
            LOG.warning("tools: %d rounds of calls are used up (max_rounds): this answer has no tools", most)
        yield from answer(settings if number < most else replace(settings, tool_choice=NONE))
        called = calls()
        if not called or any(functions[call.name].function is None for call in called):
            break
        for index, call in enumerate(called):
            allowed = confirm is None or confirm(call)
            content = functions[call.name].call(call.values()) if allowed else REFUSED
            result = ToolResult(index, call.id, call.name, content)
            add(result.message())
            yield result
        settings = replace(settings, tool_choice=AUTO if settings.tool_choice != NONE else NONE)
    return number == most


def calls_of(message: Message) -> list[ToolCall]:
    """The calls of a message."""
    return [
        ToolCall(call["id"], call["function"]["name"], call["function"]["arguments"])
        for call in message.get("tool_calls", ())
    ]
