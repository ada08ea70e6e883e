"""Phi-4 mini: a JSON list after `<|tool_call|>` up to `<|/tool_call|>`, or after `functools`."""

from __future__ import annotations

from graphml.text.answers.answer_format import AnswerFormat
from graphml.text.answers.call_sink import CallSink
from graphml.text.answers.call_syntax import CallSyntax
from graphml.text.answers.json_calls import json_calls
from graphml.text.answers.text_reader import Step, TextReader, fail


def _functools(reader: TextReader, calls: CallSink) -> Step[None]:
    if (yield from reader.peek()) != "[":
        fail("no list")
    yield from json_calls(reader, calls)


FORMAT = AnswerFormat(
    "phi4",
    found_by=(("<|tool|>", "<|/tool|>"), ("functools[",)),
    rank=1,
    calls={"functools": _functools},
    shown=("<|/tool_call|>",),
    syntax=CallSyntax(
        '{{"name": "{name}", "arguments": ', "}}", begin="<|tool_call|>[", end="]<|/tool_call|>",
        between=", ", is_object=True,
    ),
    markers=("<|tool_call|>",),
)  # fmt: skip
