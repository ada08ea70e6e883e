"""Where the readers of formats put the tool calls that they find, each part as soon as it is known.

Knows the tools by name; nothing of formats.
"""

from __future__ import annotations

import json
import re
import secrets
import string
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from graphml.text.answers.events import Event, ToolCallBegin, ToolCallDelta, ToolCallEnd
from graphml.text.answers.text_reader import TextReader, fail

_LETTERS: Final = string.ascii_letters + string.digits
_NUMBERED: Final = re.compile(r"(.*?)(\d{1,9})", re.DOTALL)

Schemas = Mapping[str, Mapping[str, Any]]
"""Of each tool, by name, the JSON schema of its parameters."""


def random_id() -> str:
    """An id of a call as OpenAI writes them."""
    return "call_" + "".join(secrets.choice(_LETTERS) for _ in range(24))


def short_id() -> str:
    """An id of nine letters and digits, which Mistral's templates ask for."""
    return "".join(secrets.choice(_LETTERS) for _ in range(9))


def json_text(value: Any) -> str:
    """A value as JSON; half of a surrogate pair, which UTF-8 has no bytes for, as its escape.

    MalformedError for a number that JSON has not.
    """
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value)
    except ValueError as error:
        fail(str(error))
    return text


class CallSink:
    """Emits the events of calls. n: calls so far, those that were cut, too.

    holds: whether the events of a call wait until it is whole, as where no grammar makes it so. used_ids: of
    earlier calls; an id that was used gets another number, or gives way to a new one. After each whole call
    the reader's mark is moved behind it: what is malformed later leaves it as it is.
    """

    def __init__(
        self,
        tools: Schemas,
        reader: TextReader,
        emit: Callable[[Event], None],
        new_id: Callable[[], str],
        holds: bool,
        used_ids: Iterable[str],
    ) -> None:
        self.tools, self._reader, self._send, self._new_id = tools, reader, emit, new_id
        self.n, self.is_open, self.n_whole, self._n_keys = 0, False, 0, 0
        self.holds, self._held = holds, list[Event]()
        self._used_ids = set(used_ids)
        self._before: tuple[int, int] | None = None  # n and n_whole at the begin of what is tried

    def begin(self, name: str, id: str = "") -> None:
        """A call begins; MalformedError for a tool that was not offered."""
        if name not in self.tools:
            fail(f"no tool {name}")
        if self.is_open:
            self.end()
        self._emit(ToolCallBegin(self.n, self._unused(id or self._new_id()), name))
        self.n += 1
        self.is_open, self._n_keys = True, 0

    def piece(self, text: str) -> None:
        """A further piece of the arguments."""
        if text:
            self._emit(ToolCallDelta(self.n - 1, text))

    def key(self, key: str) -> None:
        """The name of a further argument, whose value follows as JSON."""
        self.piece(f"{', ' if self._n_keys else '{'}{json_text(key)}: ")
        self._n_keys += 1

    def close(self) -> None:
        """No further argument follows."""
        self.piece("}" if self._n_keys else "{}")

    def end(self) -> None:
        """The call is whole."""
        self._emit(ToolCallEnd(self.n - 1))
        self.is_open = False
        self.n_whole += 1
        self._release()
        self._reader.set_mark(self._reader.at)

    def whole(self, name: str, arguments: str, id: str = "") -> None:
        """A call at once."""
        self.begin(name, id)
        self.piece(arguments)
        self.end()

    def break_off(self, cut: bool) -> None:
        """The call that is open is not whole. cut: the text ended in it; else what was not told is none."""
        if not self.is_open:
            return
        self.is_open = False
        if self.holds and not cut:
            self._forget()
            self.n -= 1
            return
        self._emit(ToolCallEnd(self.n - 1, ok=False))
        self._release()

    def try_calls(self) -> None:
        """The calls from here on are emitted or not as `decide` says."""
        self._before = self.n, self.n_whole

    def decide(self, calls: bool) -> None:
        """What was tried is calls, or none."""
        assert self._before is not None
        if not calls:
            self.n, self.n_whole = self._before
            self.is_open = False
            self._forget()
        self._before = None
        self._release()

    def _forget(self) -> None:
        """What is held is none; the ids in it may be given."""
        self._used_ids -= {event.id for event in self._held if isinstance(event, ToolCallBegin)}
        self._held.clear()

    def _unused(self, id: str) -> str:
        while id in self._used_ids:
            numbered = _NUMBERED.fullmatch(id)
            id = f"{numbered[1]}{int(numbered[2]) + 1}" if numbered else self._new_id()
        self._used_ids.add(id)
        return id

    def _emit(self, event: Event) -> None:
        if self.holds or self._before is not None:
            self._held.append(event)
        else:
            self._send(event)

    def _release(self) -> None:
        if self._before is None:
            for event in self._held:
                self._send(event)
            self._held.clear()
