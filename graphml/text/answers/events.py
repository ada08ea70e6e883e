"""What an answer of a model consists of, as events while it streams, and as one message at its end.

Knows texts and names; nothing of formats, tokens or templates.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, TypeAlias


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
    """A tool call ends. ok: False for a call that broke off; its text follows as content, all of it."""

    index: int
    ok: bool = True


Event: TypeAlias = ContentDelta | ReasoningDelta | ToolCallBegin | ToolCallDelta | ToolCallEnd


@dataclass(frozen=True)
class ToolCall:
    """A complete call. arguments: a JSON object as text."""

    id: str
    name: str
    arguments: str

    def as_openai(self) -> dict[str, Any]:
        """As messages hold it, with the arguments as text."""
        return {
            "id": self.id, "type": "function",
            "function": {"name": self.name, "arguments": self.arguments},
        }  # fmt: skip

    def values(self) -> dict[str, Any]:
        """The arguments by name."""
        values = json.loads(self.arguments)
        assert isinstance(values, dict)
        return values


@dataclass
class Answer:
    """The sum of all events: the text, the reasoning and the complete calls, in order."""

    content: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)
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
                if event.ok:
                    self.tool_calls.append(call)

    def message(self) -> dict[str, Any]:
        """As a message of a conversation: role, content, and reasoning_content and tool_calls if any."""
        message: dict[str, Any] = {"role": "assistant", "content": self.content}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.tool_calls:
            message["tool_calls"] = [call.as_openai() for call in self.tool_calls]
        return message
