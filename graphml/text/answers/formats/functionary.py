"""Functionary 3.1: `<function=NAME>` with the arguments as JSON; code for `python` after `<|python_tag|>`."""

from __future__ import annotations

import json

from graphml.text.answers.answer_format import AnswerFormat, CallSyntax
from graphml.text.answers.call_sink import CallSink
from graphml.text.answers.formats.llama3 import PYTHON_TOOLS
from graphml.text.answers.json_calls import json_arguments
from graphml.text.answers.text_reader import Step, TextReader


def _read(reader: TextReader, calls: CallSink) -> Step[None]:
    name = (yield from reader.within((">",))).strip()
    yield from json_arguments(reader, calls, name)
    yield from reader.closing("</function>")


def _code(reader: TextReader, calls: CallSink) -> Step[None]:
    parts: list[str] = []
    yield from reader.until((), parts.append)
    name = next((tool for tool in PYTHON_TOOLS if tool in calls.tools), "")
    calls.whole(name, json.dumps({"code": "".join(parts)}, ensure_ascii=False))


FORMAT = AnswerFormat(
    "functionary",
    found_by=(("<function=", "</function>"),),
    not_with=("<parameter=", "<tool_call>"),
    rank=2,
    calls={"<function=": _read, "<|python_tag|>": _code},
    syntax=CallSyntax("<function={name}>", "</function>"),
)
