"""Any other model: its whole answer is one JSON object, forced by a schema, with a call or a response in it.

Knows how that object is read; `graphml.text.answers.forced_calls` writes its grammar.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial

from graphml.text.answers.answer_format import AnswerFormat, Reading
from graphml.text.answers.json_calls import json_calls
from graphml.text.answers.text_reader import MalformedError, Step, fail

CALL, CALLS, RESPONSE = "tool_call", "tool_calls", "response"


class _Spelled:
    """Emits what the pieces of a JSON string spell, as soon as its escapes are whole."""

    def __init__(self, parser: Reading) -> None:
        self._parser, self._held, self.n = parser, "", 0

    def __call__(self, text: str) -> None:
        if text == '"':  # at the string's ends; in it a quote has its backslash
            return
        self._held += text
        try:
            value = json.loads(f'"{self._held}"')
        except ValueError:
            return
        if value and "\ud800" <= value[-1] < "\udc00":  # the first half of a character
            return
        self.as_it_is(value)
        self._held = ""

    def as_it_is(self, text: str) -> None:
        """Emit a piece that spells itself."""
        self._parser.content(text)
        self.n += len(text)


def _answer(parser: Reading, as_json: bool = False) -> Step[None]:
    reader, calls = parser.reader, parser.calls
    if (yield from reader.space()) == "{" and calls.tools:
        reader.set_mark(reader.at)
        start, text = reader.at, _Spelled(parser)
        try:
            yield from _object(parser, text, as_json)
            reader.set_mark(-1)
            return
        except MalformedError:
            calls.break_off()
            if not text.n:
                reader.at = start if calls.n_whole == 0 else reader.mark
            reader.set_mark(-1)
    yield from reader.until((), parser.content)
    parser.keep_space()


def _object(parser: Reading, text: _Spelled, as_json: bool) -> Step[None]:
    reader = parser.reader
    yield from reader.literal("{")
    key = yield from reader.json_string()
    yield from reader.space()
    yield from reader.literal(":")
    if key == RESPONSE:
        first = yield from reader.space()
        if as_json:
            yield from reader.json_value(text.as_it_is)
        elif first == '"':
            yield from reader.json_value(text)
        else:
            parser.content((yield from reader.json_value()))
    elif key in (CALL, CALLS):
        yield from json_calls(reader, parser.calls)
    else:
        fail(f"a key {key}")
    yield from reader.closing("}")


FORMAT = AnswerFormat("generic", found_by=(), whole=_answer)
WITH_SCHEMA = replace(FORMAT, whole=partial(_answer, as_json=True))
"""The same where the response follows a schema: it is JSON as it stands, a string in its quotes."""
