"""Functionary 3.1: `<function=NAME>` with the arguments as JSON; code for `python` after `<|python_tag|>`."""

from __future__ import annotations

from graphml.text.answers.answer_format import AnswerFormat
from graphml.text.answers.call_sink import CallSink, json_text
from graphml.text.answers.call_syntax import CallSyntax
from graphml.text.answers.formats.llama3 import PYTHON_TOOLS
from graphml.text.answers.text_reader import Step, TextReader


def _code(reader: TextReader, calls: CallSink) -> Step[None]:
    parts: list[str] = []
    yield from reader.until((), parts.append)
    name = next((tool for tool in PYTHON_TOOLS if tool in calls.tools), "")
    calls.whole(name, json_text({"code": "".join(parts)}))


FORMAT = AnswerFormat(
    "functionary",
    found_by=(("<function=", "</function>"),),
    not_with=("<parameter=", "<tool_call>"),
    rank=2,
    syntax=CallSyntax("<function={name}>", "</function>"),
    markers=("<function=",),
    calls={"<|python_tag|>": _code},
)
