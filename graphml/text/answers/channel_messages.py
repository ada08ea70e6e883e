"""Answers of several messages, each behind a header that says whether it is reasoning, text or a call.

Knows where messages begin and end; a family's file says what its headers mean and how its calls are written.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from graphml.text.answers.answer_format import WholeAnswerParser
from graphml.text.answers.call_syntax import CallReader
from graphml.text.answers.text_reader import CutError, Emit, Step, TextReader

REASONING, TEXT = "reasoning", "text"
_LONGEST_HEADER: Final = 300
MOST_HEADERS: Final = 100
"""So many malformed headers and calls are tried; then the rest is text."""


@dataclass(frozen=True)
class ChannelMessages:
    """The marks of messages: `start` or another of `opens`, the header, `message`, the text, one of `ends`.

    header: of a header's text without `start`, REASONING or TEXT with "", or "" with the name of the tool
    that is called; None for what is no header. call: reads the rest of the call of a tool.
    """

    start: str
    opens: tuple[str, ...]
    message: str
    ends: tuple[str, ...]
    header: Callable[[str], tuple[str, str] | None]
    call: Callable[[str], CallReader]

    def read(self, parser: WholeAnswerParser) -> Step[None]:
        """Read one message after another."""
        reader = parser.reader
        # ` to=` may stand in a text, and opens a header at the begin of the answer alone.
        begins = self.start, *(text for text in self.opens if not text.startswith(" "))
        while True:
            if parser.n_malformed >= MOST_HEADERS:
                yield from reader.until((), parser.content)
                break
            try:
                opened = yield from reader.known(self.start, *self.opens)
            except CutError:
                opened = ""
                if reader.cut:
                    break
            if not opened:
                stop = yield from reader.until((*begins, *self.ends), parser.content)
                if stop is None:
                    break
                reader.at -= len(stop) if stop not in self.ends else 0
                continue
            yield from self._message(parser, opened)
        parser.keep_space()

    def _message(self, parser: WholeAnswerParser, opened: str) -> Step[None]:
        reader = parser.reader
        begin = reader.at - len(opened)
        reader.set_mark(begin)
        parts = ["" if opened == self.message else opened]
        stop: str | None = self.message
        if opened != self.message:
            stop = yield from reader.until((self.message, *self.ends), parts.append)
        if stop is None and reader.cut and sum(map(len, parts)) < _LONGEST_HEADER:
            reader.at = len(reader.text)  # a header that was cut is no text
            return
        text = "".join(parts).removeprefix(self.start)
        header = self.header(text) if stop == self.message and len(text) < _LONGEST_HEADER else None
        if header is None:  # no header after all
            parser.n_malformed += 1
            parser.content(reader.text[begin : begin + len(opened)])
            reader.at = begin + len(opened)
            reader.set_mark(-1)
            return
        kind, tool = header
        if tool:
            yield from parser.read_calls(reader.text[begin : reader.at], self.call(tool))
            return
        reader.set_mark(-1)
        if kind == REASONING:
            if parser.split:
                parser.reasoned = False
                yield from self._body(reader, parser.reasoning)
                parser.reasoned = True
                parser.drop_space()
                return
            parser.content(reader.text[begin : reader.at])
        yield from self._body(reader, parser.content)

    def _body(self, reader: TextReader, emit: Emit) -> Step[None]:
        stop = yield from reader.until((*self.ends, self.start), emit)
        if stop == self.start:
            reader.at -= len(self.start)
