"""Seed-OSS: Qwen3-Coder's tags under names of its own."""

from __future__ import annotations

from graphml.text.answers.answer_format import AnswerFormat, ReasoningMarks
from graphml.text.answers.call_syntax import CallSyntax
from graphml.text.answers.formats.qwen3_coder import PARAMETERS

FORMAT = AnswerFormat(
    "seed",
    found_by=(("<seed:tool_call>",),),
    rank=3,
    syntax=CallSyntax(
        "<seed:tool_call>\n<function={name}>\n", "\n</seed:tool_call>", between="\n", arguments=PARAMETERS
    ),
    markers=("<seed:tool_call>",),
    reasoning=ReasoningMarks("<seed:think>", "</seed:think>"),
)
