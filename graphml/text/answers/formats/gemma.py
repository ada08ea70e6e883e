"""Gemma 4 and FunctionGemma: `call:NAME{key:value}`, with strings in quotes that are tokens."""

from __future__ import annotations

import json
import re
from typing import Any, Final

from graphml.text.answers.answer_format import AnswerFormat, CallReader, ReasoningMarks
from graphml.text.answers.call_sink import CallSink
from graphml.text.answers.text_reader import Step, TextReader, fail, parsed

_NAME: Final = re.compile(r"\s*([^\s:{}\[\],<]+)\s*")
_PLAIN: Final = re.compile(r"[^,}\]]+")
MAX_LEVELS: Final = 50


def _reader(end: str, quote: str) -> CallReader:
    def read(reader: TextReader, calls: CallSink) -> Step[None]:
        yield from reader.space()
        yield from reader.literal("call:")
        name = (yield from reader.within(("{",))).strip()
        parts: list[str] = []
        yield from reader.until((end,), parts.append)
        text = "{" + "".join(parts).rstrip()
        value, at = _value(text, 0, quote, 0)
        if at != len(text):
            fail("text behind the arguments")
        calls.whole(name, json.dumps(value, ensure_ascii=False))

    return read


def _value(text: str, at: int, quote: str, level: int) -> tuple[Any, int]:
    """The value that begins here, and where it ends."""
    at += len(text[at:]) - len(text[at:].lstrip())
    if level > MAX_LEVELS:
        fail("nested too deeply")
    if text.startswith(quote, at):
        end = text.find(quote, at + len(quote))
        if end < 0:
            fail("a string without its end")
        return text[at + len(quote) : end], end + len(quote)
    if text.startswith("{", at):
        return _mapping(text, at + 1, quote, level + 1)
    if text.startswith("[", at):
        return _list(text, at + 1, quote, level + 1)
    match = _PLAIN.match(text, at)
    if match is None:
        fail("a value is missing")
    return parsed(match.group().strip()), match.end()


def _mapping(text: str, at: int, quote: str, level: int) -> tuple[dict[str, Any], int]:
    mapping: dict[str, Any] = {}
    while not text.startswith("}", at):
        if text.startswith(quote, at):
            key, at = _value(text, at, quote, level)
        else:
            name = _NAME.match(text, at)
            if name is None:
                fail("a key is missing")
            key, at = name[1], name.end()
        if not text.startswith(":", at):
            fail("wanted : after a key")
        mapping[key], at = _value(text, at + 1, quote, level)
        at = _next(text, at, "}")
    return mapping, at + 1


def _list(text: str, at: int, quote: str, level: int) -> tuple[list[Any], int]:
    elements: list[Any] = []
    while not text.startswith("]", at):
        element, at = _value(text, at, quote, level)
        elements.append(element)
        at = _next(text, at, "]")
    return elements, at + 1


def _next(text: str, at: int, close: str) -> int:
    """Behind a comma, or at what closes."""
    if text.startswith(",", at):
        return at + 1
    if not text.startswith(close, at):
        fail(f"wanted , or {close}")
    return at


FORMAT = AnswerFormat(
    "gemma4",
    found_by=(("<|tool_call>", "<tool_call|>"),),
    rank=3,
    calls={"<|tool_call>": _reader("<tool_call|>", '<|"|>')},
    shown=("<tool_call|>", '<|"|>'),
    reasoning=ReasoningMarks("<|channel>thought", "<channel|>"),
)
FUNCTION_GEMMA = AnswerFormat(
    "functiongemma",
    found_by=(("<start_function_call>",),),
    rank=3,
    calls={"<start_function_call>": _reader("<end_function_call>", "<escape>")},
    shown=("<end_function_call>", "<escape>"),
)
FORMATS = (FORMAT, FUNCTION_GEMMA)
