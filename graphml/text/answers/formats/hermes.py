"""Hermes, Qwen 2.5 and 3, Granite 4 and many: JSON between `<tool_call>` tags; Apriel: a list of it."""

from __future__ import annotations

from graphml.text.answers.answer_format import AnswerFormat
from graphml.text.answers.call_sink import CallSink
from graphml.text.answers.call_syntax import CallSyntax
from graphml.text.answers.json_calls import json_calls
from graphml.text.answers.text_reader import Step, TextReader


def _list(reader: TextReader, calls: CallSink) -> Step[None]:
    """One list, or objects that follow each other."""
    while (yield from reader.space()) in ("[", "{"):
        yield from json_calls(reader, calls)
    yield from reader.closing("</tool_calls>")


FORMAT = AnswerFormat(
    "hermes",
    found_by=(("<tool_call>",),),
    not_with=("<arg_key>", "<function=", "[TOOL_CALLS]", "<tool_calls>", "]minimax["),
    syntax=CallSyntax(
        '<tool_call>\n{{"name": "{name}", "arguments": ', "}}\n</tool_call>", between="\n", is_object=True
    ),
    markers=("<tool_call>",),
)
LIST = AnswerFormat(
    "apriel",
    found_by=(("<tool_calls>[",), ("<tool_calls>\\n{",), ("<tool_calls>\n{",)),
    rank=1,
    syntax=CallSyntax(
        '{{"name": "{name}", "arguments": ', "}}", begin="<tool_calls>[", between=", ", end="]</tool_calls>",
        is_object=True,
    ),
    calls={"<tool_calls>": _list},
)  # fmt: skip
FORMATS = (FORMAT, LIST)
