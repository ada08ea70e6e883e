"""Granite 3: a JSON list after `<|tool_call|>`."""

from __future__ import annotations

from graphml.text.answers.answer_format import AnswerFormat, CallSyntax, ReasoningMarks
from graphml.text.answers.call_sink import CallSink
from graphml.text.answers.json_calls import json_calls
from graphml.text.answers.text_reader import Step, TextReader


def _read(reader: TextReader, calls: CallSink) -> Step[None]:
    yield from json_calls(reader, calls)


FORMAT = AnswerFormat(
    "granite",
    found_by=(("<|tool_call|>", "<|start_of_role|>"),),
    rank=1,
    calls={"<|tool_call|>": _read},
    reasoning=ReasoningMarks("<think>", "</think>"),
    syntax=CallSyntax(
        '{{"name": "{name}", "arguments": ', "}}", begin="<|tool_call|>[", between=", ", end="]"
    ),
)
