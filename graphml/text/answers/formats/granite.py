"""Granite 3: a JSON list after `<|tool_call|>`."""

from __future__ import annotations

from graphml.text.answers.answer_format import AnswerFormat, ReasoningMarks
from graphml.text.answers.call_syntax import CallSyntax

FORMAT = AnswerFormat(
    "granite",
    found_by=(("<|tool_call|>", "<|start_of_role|>"),),
    rank=1,
    syntax=CallSyntax(
        '{{"name": "{name}", "arguments": ',
        "}}",
        begin="<|tool_call|>[",
        between=", ",
        end="]",
        is_object=True,
    ),
    markers=("<|tool_call|>",),
    reasoning=ReasoningMarks("<think>", "</think>"),
)
