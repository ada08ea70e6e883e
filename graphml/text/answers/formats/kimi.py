"""Kimi K2: calls with their ids, `functions.NAME:NUMBER`, in a section of their own."""

from __future__ import annotations

from graphml.text.answers.answer_format import AnswerFormat
from graphml.text.answers.call_sink import CallSink
from graphml.text.answers.call_syntax import CallSyntax
from graphml.text.answers.json_calls import json_arguments
from graphml.text.answers.text_reader import Step, TextReader

BEGIN, END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
CALL, ARGUMENTS, CALL_END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"


def _read(reader: TextReader, calls: CallSink) -> Step[None]:
    yield from reader.space()
    yield from reader.literal(CALL)
    while True:
        id = (yield from reader.within((ARGUMENTS,))).strip()
        name = id.removeprefix("functions.").rpartition(":")[0]
        yield from json_arguments(reader, calls, name or id, id)
        yield from reader.closing(CALL_END)
        calls.end()
        yield from reader.space()
        if (yield from reader.optional(CALL)) != CALL:
            break
    yield from reader.closing(END)


FORMAT = AnswerFormat(
    "kimi",
    found_by=((BEGIN, ARGUMENTS),),
    rank=1,
    calls={BEGIN: _read},
    shown=(CALL, ARGUMENTS, CALL_END, END),
    syntax=CallSyntax(f"{CALL}functions.{{name}}:{{number}}{ARGUMENTS}", CALL_END, begin=BEGIN, end=END),
)
