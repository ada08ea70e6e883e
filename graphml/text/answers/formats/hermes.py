"""Hermes, Qwen 2.5 and 3, Granite 4 and many: JSON between `<tool_call>` tags; Apriel: a list of it."""

from __future__ import annotations

from graphml.text.answers.answer_format import AnswerFormat, CallSyntax
from graphml.text.answers.call_sink import CallSink
from graphml.text.answers.json_calls import json_calls
from graphml.text.answers.text_reader import Step, TextReader


def _read(reader: TextReader, calls: CallSink) -> Step[None]:
    yield from json_calls(reader, calls)
    yield from reader.closing("</tool_call>")


def _list(reader: TextReader, calls: CallSink) -> Step[None]:
    """One list, or objects that follow each other."""
    while (yield from reader.space()) in ("[", "{"):
        yield from json_calls(reader, calls)
    yield from reader.closing("</tool_calls>")


FORMAT = AnswerFormat(
    "hermes",
    found_by=(("<tool_call>",),),
    not_with=("<arg_key>", "<function=", "[TOOL_CALLS]", "<tool_calls>", "]minimax["),
    calls={"<tool_call>": _read},
    syntax=CallSyntax('<tool_call>\n{{"name": "{name}", "arguments": ', "}}\n</tool_call>", between="\n"),
)
LIST = AnswerFormat(
    "apriel",
    found_by=(("<tool_calls>[",), ("<tool_calls>\\n{",), ("<tool_calls>\n{",)),
    rank=1,
    calls={"<tool_calls>": _list},
    syntax=CallSyntax(
        '{{"name": "{name}", "arguments": ', "}}", begin="<tool_calls>[", between=", ", end="]</tool_calls>"
    ),
)
FORMATS = (FORMAT, LIST)
