"""gpt-oss (Harmony): messages in channels; analysis is reasoning, final is text, to=functions.NAME a call.

https://cookbook.openai.com/articles/openai-harmony
"""

from __future__ import annotations

import re
from typing import Final

from graphml.text.answers.answer_format import AnswerFormat, ReasoningMarks, WholeAnswerParser
from graphml.text.answers.call_sink import CallSink
from graphml.text.answers.call_syntax import CallReader, CallSyntax
from graphml.text.answers.json_calls import json_arguments
from graphml.text.answers.text_reader import Emit, Step, TextReader, fail

START, CHANNEL, MESSAGE, CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
ENDS: Final = ("<|end|>", "<|call|>", "<|return|>")
_HEADER: Final = re.compile(
    r"(?:assistant)?(?P<to_role>\s+to=\S+?)?\s*(?:<\|channel\|>(?P<channel>\w+)"
    r"(?P<to>\s+to=[^\s<]+)?\s*(?:<\|constrain\|>)?\s*\w*\s*)?"
)
_LONGEST_HEADER: Final = 300
MOST_HEADERS: Final = 100
"""So many malformed headers and calls are tried; then the rest is text."""
_STRAY: Final = re.compile(r"<\|channel\|>commentary(?: to=assistant)?(?=<\|channel\|>)")


def _answer(parser: WholeAnswerParser) -> Step[None]:
    """Read one message after another."""
    reader = parser.reader
    while True:
        if parser.n_malformed >= MOST_HEADERS:
            yield from reader.until((), parser.content)
            break
        opened = yield from reader.optional(START, CHANNEL, " to=")
        if not opened:
            stop = yield from reader.until((START, CHANNEL, *ENDS), parser.content)
            if stop is None:
                break
            reader.at -= len(stop) if stop not in ENDS else 0
            continue
        yield from _message(parser, opened)
    parser.keep_space()


def _message(parser: WholeAnswerParser, opened: str) -> Step[None]:
    reader = parser.reader
    begin = reader.at - len(opened)
    reader.set_mark(begin)
    parts = [opened]
    stop = yield from reader.until((MESSAGE, *ENDS), parts.append)
    if stop is None and reader.cut and sum(map(len, parts)) < _LONGEST_HEADER:
        reader.at = len(reader.text)  # a header that was cut is no text
        return
    text = _STRAY.sub("", "".join(parts).removeprefix(START))
    header = _HEADER.fullmatch(text) if stop == MESSAGE and len(text) < _LONGEST_HEADER else None
    if header is None:  # no header after all
        parser.n_malformed += 1
        parser.content(reader.text[begin : begin + len(opened)])
        reader.at = begin + len(opened)
        reader.set_mark(-1)
        return
    recipient = (header["to_role"] or header["to"] or "").strip().removeprefix("to=")
    if recipient and recipient != "assistant":
        name = recipient.removeprefix("functions.")
        yield from parser.read_calls(reader.text[begin : reader.at], _call_of(name))
        return
    reader.set_mark(-1)
    if header["channel"] == "analysis":
        if parser.split:
            parser.reasoned = False
            yield from _body(reader, parser.reasoning)
            parser.reasoned = True
            parser.drop_space()
            return
        parser.content(reader.text[begin : reader.at])
    yield from _body(reader, parser.content)


def _call_of(name: str) -> CallReader:
    def read(reader: TextReader, calls: CallSink) -> Step[None]:
        if name not in calls.tools:
            fail(f"no tool {name}")
        if (yield from reader.optional(*ENDS)) or (not (yield from reader.space()) and not reader.cut):
            calls.whole(name, "{}")  # gpt-oss ends a call without arguments so
            return
        yield from json_arguments(reader, calls, name)
        if (yield from reader.space()) and (yield from reader.optional(*ENDS, START)) == START:
            reader.at -= len(START)

    return read


def _body(reader: TextReader, emit: Emit) -> Step[None]:
    stop = yield from reader.until((*ENDS, START), emit)
    if stop == START:
        reader.at -= len(START)


FORMAT = AnswerFormat(
    "harmony",
    found_by=((CHANNEL, "analysis", MESSAGE),),
    rank=4,
    whole=_answer,
    text_open=f"{CHANNEL}final{MESSAGE}",
    reasoning=ReasoningMarks(f"{CHANNEL}analysis{MESSAGE}", "<|end|>"),
    shown=(START, CHANNEL, MESSAGE, CONSTRAIN, "<|end|>"),
    syntax=CallSyntax(
        f"{CHANNEL}commentary to=functions.{{name}} {CONSTRAIN}json{MESSAGE}",
        "",
        between=f"<|end|>{START}assistant",
    ),
)
