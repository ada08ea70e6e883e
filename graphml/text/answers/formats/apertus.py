"""Apertus: a list of objects between two tokens, each with the tool's name as its one key."""

from __future__ import annotations

from graphml.text.answers.answer_format import AnswerFormat, ReasoningMarks
from graphml.text.answers.call_syntax import CallSyntax

BEGIN, END = "<|tools_prefix|>", "<|tools_suffix|>"
FORMAT = AnswerFormat(
    "apertus",
    found_by=((BEGIN, END),),
    rank=2,
    syntax=CallSyntax('{{"{name}": ', "}}", begin=f"{BEGIN}[", between=", ", end=f"]{END}"),
    markers=(BEGIN,),
    shown=(END,),
    reasoning=ReasoningMarks("<|inner_prefix|>", "<|inner_suffix|>"),
)
