"""Hermes, Qwen 2.5 and 3, Granite 4, MiniMax M1 and many others: JSON between `<tool_call>` tags."""

from __future__ import annotations

from graphml.text.answers.answer_format import AnswerFormat, CallSyntax
from graphml.text.answers.call_sink import CallSink
from graphml.text.answers.json_calls import json_calls
from graphml.text.answers.text_reader import Step, TextReader


def _read(reader: TextReader, calls: CallSink) -> Step[None]:
    yield from json_calls(reader, calls)
    yield from reader.closing("</tool_call>")


FORMAT = AnswerFormat(
    "hermes",
    found_by=(("<tool_call>",),),
    not_with=("<arg_key>", "<function=", "[TOOL_CALLS]"),
    calls={"<tool_call>": _read},
    syntax=CallSyntax('<tool_call>\n{{"name": "{name}", "arguments": ', "}}\n</tool_call>", between="\n"),
)
