"""Where the readers of formats put the tool calls that they find, each part as soon as it is known.

Knows the tools by name; nothing of formats.
"""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable, Mapping
from typing import Any, Final

from graphml.text.answers.events import Event, ToolCallBegin, ToolCallDelta, ToolCallEnd
from graphml.text.answers.text_reader import TextReader, fail

_LETTERS: Final = string.ascii_letters + string.digits

Schemas = Mapping[str, Mapping[str, Any]]
"""Of each tool, by name, the JSON schema of its parameters."""


def random_id() -> str:
    """An id of a call as OpenAI writes them."""
    return "call_" + "".join(secrets.choice(_LETTERS) for _ in range(24))


def short_id() -> str:
    """An id of nine letters and digits, which Mistral's templates ask for."""
    return "".join(secrets.choice(_LETTERS) for _ in range(9))


class CallSink:
    """Emits the events of calls. n: calls so far, those that broke off too.

    After each whole call the reader's mark is moved behind it: what is malformed later leaves it as it is.
    """

    def __init__(
        self, tools: Schemas, reader: TextReader, emit: Callable[[Event], None], new_id: Callable[[], str]
    ) -> None:
        self.tools, self._reader, self._emit, self._new_id = tools, reader, emit, new_id
        self.n, self.is_open, self.n_whole = 0, False, 0

    def begin(self, name: str, id: str = "") -> None:
        """A call begins; MalformedError for a tool that was not offered."""
        if name not in self.tools:
            fail(f"no tool {name}")
        if self.is_open:
            self.end()
        self._emit(ToolCallBegin(self.n, id or self._new_id(), name))
        self.n += 1
        self.is_open = True

    def piece(self, text: str) -> None:
        """A further piece of the arguments."""
        if text:
            self._emit(ToolCallDelta(self.n - 1, text))

    def end(self) -> None:
        """The call is whole."""
        self._emit(ToolCallEnd(self.n - 1))
        self.is_open = False
        self.n_whole += 1
        self._reader.set_mark(self._reader.at)

    def whole(self, name: str, arguments: str, id: str = "") -> None:
        """A call at once."""
        self.begin(name, id)
        self.piece(arguments)
        self.end()

    def break_off(self) -> None:
        """The call that is open is none."""
        if self.is_open:
            self._emit(ToolCallEnd(self.n - 1, ok=False))
            self.is_open = False
