"""An answer as a text that says why it ended.

Knows texts and reasons; nothing of models.
"""

from __future__ import annotations

from typing import Any, ClassVar, Self

from graphml.other_attributes import NamesOthers

WHOLE = ("end", "stop")
"""Reasons to end that are the model's, or the caller's own."""


class AnswerText(str, NamesOthers):
    """A text, with `stop_reason` of `Result`; its repr names one that cut it off: "length", "context"."""

    _same: ClassVar = dict.fromkeys(("text", "content", "response"), "_text")
    _instead: ClassVar = dict.fromkeys(
        ("tokens", "usage", "stats", "logprobs"), "session.stats, or Model.generate"
    )
    stop_reason: str | None

    def __new__(cls, text: str, stop_reason: str | None = None) -> Self:
        """The text itself, and its reason."""
        answer = super().__new__(cls, text)
        answer.stop_reason = stop_reason
        return answer

    def __getnewargs__(self) -> tuple[Any, ...]:
        """What a copy is made of."""
        return str(self), self.stop_reason

    def __repr__(self) -> str:
        text = super().__repr__()
        if self.stop_reason in (None, *WHOLE):
            return text
        return f"AnswerText({text}, {self.stop_reason})"

    @property
    def _text(self) -> str:
        return str(self)

    @property
    def finish_reason(self) -> str | None:
        """The stop_reason in OpenAI's words, "stop" or "length"; others as they are."""
        return None if self.stop_reason is None else finish_reason(self.stop_reason)


def finish_reason(stop_reason: str) -> str:
    """A stop_reason in OpenAI's words, "stop" or "length"; "cancel" and "deadline" as they are."""
    return {"end": "stop", "context": "length"}.get(stop_reason, stop_reason)
