"""Any other model: JSON objects that are the whole answer, one a call, on lines of their own.

The form of most formats without what marks it: models that were trained on none write it best.
"""

from __future__ import annotations

from graphml.text.answers.answer_format import AnswerFormat, CallSyntax
from graphml.text.answers.call_sink import CallSink
from graphml.text.answers.json_calls import json_call
from graphml.text.answers.text_reader import Step, TextReader


def _bare(reader: TextReader, calls: CallSink) -> Step[None]:
    yield from json_call(reader, calls, only=True)
    while (yield from reader.space()) == "{":
        reader.set_mark(reader.at)
        yield from json_call(reader, calls, only=True)


FORMAT = AnswerFormat(
    "generic",
    found_by=(),
    bare=_bare,
    syntax=CallSyntax('{{"name": "{name}", "arguments": ', "}}", between="\n"),
)
