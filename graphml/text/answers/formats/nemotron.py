"""Nemotron Nano v2: a JSON list between `<TOOLCALL>` tags."""

from __future__ import annotations

from graphml.text.answers.answer_format import AnswerFormat
from graphml.text.answers.call_syntax import CallSyntax

FORMAT = AnswerFormat(
    "nemotron",
    found_by=(("<TOOLCALL>",),),
    rank=2,
    syntax=CallSyntax(
        '{{"name": "{name}", "arguments": ', "}}", begin="<TOOLCALL>[", between=", ", end="]</TOOLCALL>",
        is_object=True,
    ),
    markers=("<TOOLCALL>",),
)  # fmt: skip
