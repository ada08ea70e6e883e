"""What an answer of a model consists of, as events while it streams, and as one message at its end.

Knows texts and names; nothing of formats, tokens or templates.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

_KEY: Final = re.compile(r'[\s,]*("(?:[^"\\]|\\.)*")\s*:\s*', re.DOTALL)
_END: Final = re.compile(r"\s*\Z")


@dataclass(frozen=True)
class ContentDelta:
    """A further piece of the answer's text."""

    text: str


@dataclass(frozen=True)
class ReasoningDelta:
    """A further piece of the reasoning before the answer."""

    text: str


@dataclass(frozen=True)
class ToolCallBegin:
    """A tool call begins: its number in the message, its id and the tool's name."""

    index: int
    id: str
    name: str


@dataclass(frozen=True)
class ToolCallDelta:
    """A further piece of a call's arguments; all pieces together are one JSON object."""

    index: int
    text: str


@dataclass(frozen=True)
class ToolCallEnd:
    """A tool call ends. ok: False for a call that is not whole, as where the answer was cut within it."""

    index: int
    ok: bool = True


Event: TypeAlias = ContentDelta | ReasoningDelta | ToolCallBegin | ToolCallDelta | ToolCallEnd


@dataclass(frozen=True)
class ToolCall:
    """A call. arguments: a JSON object as text; whole: whether it is, else what there was of it."""

    id: str
    name: str
    arguments: str
    whole: bool = True

    def as_openai(self) -> dict[str, Any]:
        """As messages hold it, with the arguments as text."""
        return {
            "id": self.id, "type": "function",
            "function": {"name": self.name, "arguments": self.arguments},
        }  # fmt: skip

    def values(self) -> dict[str, Any]:
        """The arguments by name; of a call that is not whole, those that are."""
        values = json.loads(self.arguments) if self.whole else _whole_members(self.arguments)
        assert isinstance(values, dict)
        return values


def _whole_members(text: str) -> dict[str, Any]:
    """The members of an object's begin whose values are whole."""
    decoder, values, at = json.JSONDecoder(), dict[str, Any](), text.find("{") + 1
    while at and (match := _KEY.match(text, at)) is not None:
        key, at = json.loads(match[1]), match.end()
        try:
            values[key], at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            break
        if _END.match(text, at):
            if isinstance(values[key], int | float):
                del values[key]  # further digits may have come
            break
    return values


@dataclass
class Answer:
    """The sum of all events: the text, the reasoning and the calls, in order.

    tool_calls: those that are whole; cut: those that are not, which nobody may run.
    """

    content: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)
    cut: list[ToolCall] = field(default_factory=list)
    _open: dict[int, ToolCall] = field(default_factory=dict)

    def add(self, events: Iterable[Event]) -> None:
        """Take further events."""
        for event in events:
            if isinstance(event, ContentDelta):
                self.content += event.text
            elif isinstance(event, ReasoningDelta):
                self.reasoning += event.text
            elif isinstance(event, ToolCallBegin):
                self._open[event.index] = ToolCall(event.id, event.name, "")
            elif isinstance(event, ToolCallDelta):
                call = self._open[event.index]
                self._open[event.index] = ToolCall(call.id, call.name, call.arguments + event.text)
            else:
                call = self._open.pop(event.index)
                (self.tool_calls if event.ok else self.cut).append(replace(call, whole=event.ok))

    def message(self, cut: bool = False) -> dict[str, Any]:
        """As a message of a conversation: role, content, and reasoning_content and tool_calls if any.

        cut: with the calls that are not whole, which no template takes.
        """
        message: dict[str, Any] = {"role": "assistant", "content": self.content}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        calls = self.tool_calls + self.cut if cut else self.tool_calls
        if calls:
            message["tool_calls"] = [call.as_openai() for call in calls]
        return message
