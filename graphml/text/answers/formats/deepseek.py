"""DeepSeek R1, V3 and V3.1: a section of calls, their arguments as JSON with or without a fence."""

from __future__ import annotations

from graphml.text.answers.answer_format import AnswerFormat
from graphml.text.answers.call_sink import CallSink
from graphml.text.answers.call_syntax import CallSyntax
from graphml.text.answers.json_calls import json_arguments
from graphml.text.answers.text_reader import Step, TextReader

# Distilled models spell the marker in other ways.
BEGINS = (
    "<｜tool▁calls▁begin｜>",
    "<｜tool_calls_begin｜>",
    "<｜tool calls begin｜>",
    "<｜tool\\_calls\\_begin｜>",
)
CALL, SEPARATOR, CALL_END, END = (
    "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>",
)  # fmt: skip
FENCE = "```json"


def _read(reader: TextReader, calls: CallSink) -> Step[None]:
    yield from reader.space()
    yield from reader.literal(CALL)
    while True:
        yield from _call(reader, calls)
        yield from reader.space()
        if (yield from reader.optional(CALL)) != CALL:
            break
    yield from reader.closing(END)


def _call(reader: TextReader, calls: CallSink) -> Step[None]:
    """`function<sep>NAME` and a fence (R1, V3), or `NAME<sep>` and the arguments (V3.1)."""
    name = (yield from reader.within((SEPARATOR,))).strip()
    fenced = False
    if (yield from reader.space()) != "{":
        name = (yield from reader.within((FENCE,))).strip()
        fenced = True
    yield from json_arguments(reader, calls, name)
    if fenced:
        yield from reader.closing("```")
    yield from reader.closing(CALL_END)
    calls.end()


FORMAT = AnswerFormat(
    "deepseek-v3.1",
    found_by=(("<｜tool▁calls▁begin｜>",),),
    calls=dict.fromkeys(BEGINS, _read),
    shown=(CALL, SEPARATOR, CALL_END, END),
    syntax=CallSyntax(f"{CALL}{{name}}{SEPARATOR}", CALL_END, begin="<｜tool▁calls▁begin｜>", end=END),
)
FENCED = AnswerFormat(
    "deepseek",
    found_by=(("<｜tool▁calls▁begin｜>", FENCE),),
    rank=1,
    calls=dict.fromkeys(BEGINS, _read),
    shown=(CALL, SEPARATOR, CALL_END, END),
    syntax=CallSyntax(
        f"{CALL}function{SEPARATOR}{{name}}\n{FENCE}\n", f"\n```{CALL_END}", begin="<｜tool▁calls▁begin｜>",
        end=END, between="\n",
    ),
)  # fmt: skip
FORMATS = (FORMAT, FENCED)
