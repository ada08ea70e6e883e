"""Nemotron Nano v2: a JSON list between `<TOOLCALL>` tags."""

from __future__ import annotations

from graphml.text.answers.answer_format import AnswerFormat, CallSyntax
from graphml.text.answers.call_sink import CallSink
from graphml.text.answers.json_calls import json_calls
from graphml.text.answers.text_reader import Step, TextReader


def _read(reader: TextReader, calls: CallSink) -> Step[None]:
    yield from json_calls(reader, calls)
    yield from reader.closing("</TOOLCALL>")


FORMAT = AnswerFormat(
    "nemotron",
    found_by=(("<TOOLCALL>",),),
    rank=2,
    calls={"<TOOLCALL>": _read},
    syntax=CallSyntax(
        '{{"name": "{name}", "arguments": ', "}}", begin="<TOOLCALL>[", between=", ", end="]</TOOLCALL>"
    ),
)
