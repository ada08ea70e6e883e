"""Any other model: a JSON object that is the whole answer, or an array of several.

The form of most formats without what marks it: models that were trained on none write it best. That several
calls begin otherwise than one keeps small models from calling again and again.
"""

from __future__ import annotations

from graphml.text.answers.answer_format import AnswerFormat
from graphml.text.answers.call_sink import CallSink
from graphml.text.answers.call_syntax import CallSyntax
from graphml.text.answers.json_calls import json_calls
from graphml.text.answers.text_reader import Step, TextReader


def _bare(reader: TextReader, calls: CallSink) -> Step[None]:
    yield from json_calls(reader, calls, only=True)


FORMAT = AnswerFormat(
    "generic",
    found_by=(),
    bare=_bare,
    syntax=CallSyntax(
        '{{"name": "{name}", "arguments": ',
        "}}",
        begin="[",
        between=", ",
        end="]",
        alone=True,
        is_object=True,
    ),
)
