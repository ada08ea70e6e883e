"""The messages of a conversation, as a chat keeps and changes them: the system message, turns, undo.

Knows messages; nothing of models, sessions or servers.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar, NoReturn

from graphml.errors import UsageError
from graphml.options.argument_checks import text_of
from graphml.other_attributes import NamesOthers
from graphml.system.notebook_html import html_table
from graphml.text.answers import Event
from graphml.text.messages import Message, checked_messages


def first_messages(
    system: str, messages: Iterable[Message], prompt: str | Sequence[Message] = ()
) -> list[Message]:
    """What a conversation begins with: a system message, messages, and the user's or others behind them.

    UsageError for what is no message, and for two system messages.
    """
    question = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else checked_messages(prompt)
    text, begins = text_of("system", system), checked_messages(messages) + question
    if text and begins and begins[0]["role"] == "system":
        raise UsageError("system: wanted one system message; messages begin with another")
    return [{"role": "system", "content": text}, *begins] if text else begins


def _lost(self: HistoryCopy, *args: object, **kwargs: object) -> NoReturn:
    """UsageError for a change that the conversation would not see."""
    raise UsageError(
        "history: wanted no change of this copy, which the conversation would not see: add_user(text), "
        "undo(), reset(), or history = [*history, message]; list(history) is a list of one's own"
    )


class HistoryCopy(list[Message]):
    """The messages of a conversation to read, compare and store; changing them raises UsageError."""

    if not TYPE_CHECKING:  # a list otherwise, for all who take one
        append = extend = insert = pop = remove = clear = sort = reverse = _lost
        __setitem__ = __delitem__ = __imul__ = _lost

        def __reduce__(self):
            return list, (list(self),)  # copies and pickles are lists


class MessageList(NamesOthers):
    """What chats have in common. system: the first message, if not empty."""

    _instead: ClassVar = {
        "turns": "history", "add": "add_user or add_assistant",
        "append": "add_user, or set history", "[]": "history[...], or text for the last answer",
    }  # fmt: skip
    _same: ClassVar = {
        **dict.fromkeys(("()", "send", "generate", "chat", "say", "complete"), "respond"),
        **dict.fromkeys(("clear", "restart"), "reset"), "retry": "regenerate",
        **dict.fromkeys(("content", "reply", "answer", "response", "last", "last_message"), "text"),
        "close": "session.close",
    }  # fmt: skip

    def __init__(self, system: str = "") -> None:
        self._messages: list[Message] = []
        self._system = text_of("system", system)
        self.reset()

    def _repr_html_(self) -> str:
        rows = ((message["role"], message["content"]) for message in self._messages)
        return html_table(repr(self), ("role", "content"), rows)

    @property
    def history(self) -> list[Message]:
        """The messages so far, each {"role": ..., "content": ...}, as a copy that cannot be changed.

        It can be set: `chat.history = [*chat.history, message]`. Answers may have "reasoning_content" and
        "tool_calls", results of tools "tool_call_id" and "name".
        """
        return HistoryCopy(copy.deepcopy(self._messages))

    @history.setter
    def history(self, messages: object) -> None:
        self._messages = checked_messages(messages)
        self._begun_anew()
        first = self._messages[:1]
        self._system = first[0]["content"] if first and first[0]["role"] == "system" else ""

    messages = history  # as other libraries call it; it can be set, too

    @property
    def system(self) -> str:
        """The system message; "" for none. Setting it keeps the other messages."""
        return self._system

    @system.setter
    def system(self, text: str) -> None:
        others = self._messages[1:] if self._system else self._messages
        self._system = text_of("system", text)
        self.reset()
        self._messages += others

    def reset(self) -> None:
        """Forget all messages but the system's."""
        self._messages = [{"role": "system", "content": self._system}] if self._system else []
        self._begun_anew()

    def add_user(self, text: str) -> None:
        """Append a message of the user."""
        self._messages.append({"role": "user", "content": text_of("text", text)})

    def undo(self) -> list[Message]:
        """Remove the last message of the user with its answer, and return both; UsageError without one."""
        index = self._last_of_user("undo")
        removed = self._messages[index:]
        del self._messages[index:]
        return removed

    def _replace(
        self, answer: Callable[[], Iterator[Event]], broken_off: Callable[[], bool]
    ) -> Iterator[Event]:
        """The events of another answer to the last message, in place of the one that is there.

        After an error, or where it was broken off before it said anything, the history is as before.
        """
        before = list(self._messages)
        first = self._last_of_user("regenerate") + 1
        del self._messages[first:]
        try:
            yield from answer()
        finally:
            answers = self._messages[first:]
            if not answers or (broken_off() and not (answers[0]["content"] or len(answers[0]) > 2)):
                self._messages = before

    def _latest_turns(self, n_dropped: int) -> tuple[list[Message], list[Message]]:
        """The messages without the oldest turns, and those of these turns.

        A turn is a message of the user with all that follows it. System messages before the first one stay;
        what else is there leaves with it.
        """
        begins = self._turn_begins()
        if not 0 < n_dropped < len(begins):
            return self._messages, []
        first, end = self._messages[: begins[0]], begins[n_dropped]
        stays = [message for message in first if message["role"] == "system"]
        leaves = [message for message in first if message["role"] != "system"]
        return stays + self._messages[end:], leaves + self._messages[begins[0] : end]

    def _turn_begins(self) -> list[int]:
        return [index for index, message in enumerate(self._messages) if message["role"] == "user"]

    def _last_of_user(self, method: str) -> int:
        for index in range(len(self._messages) - 1, -1, -1):
            if self._messages[index]["role"] == "user":
                return index
        raise UsageError(f"{method}: wanted a message of the user, got a conversation without one")

    def _begun_anew(self) -> None:
        """Other messages have taken the place of those that were there."""
