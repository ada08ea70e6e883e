"""Command R: a list of actions as JSON, after `Action:` in a fence; in R7B behind `<|START_ACTION|>`."""

from __future__ import annotations

from graphml.text.answers.answer_format import AnswerFormat, ReasoningMarks
from graphml.text.answers.call_syntax import CallSyntax

ACTION, ACTION_END = "<|START_ACTION|>", "<|END_ACTION|>"
FENCED = CallSyntax(
    '{{"tool_name": "{name}", "parameters": ', "}}", begin="Action:\n```json\n[", between=", ", end="]```",
    is_object=True, keep_ids=False,
)  # fmt: skip
FORMAT = AnswerFormat(
    "command-r",
    found_by=(("Action:", '"tool_name"', "```json"),),
    syntax=FENCED,
    markers=("Action:\n```json",),
    calls={"Action: ```json": FENCED.reader("Action:\n```json")},
)
R7B = AnswerFormat(
    "command-r7b",
    found_by=((ACTION, "tool_name"),),
    rank=2,
    syntax=CallSyntax(
        '{{"tool_call_id": "0", "tool_name": "{name}", "parameters": ', "}}", begin=ACTION + "[",
        end="]" + ACTION_END, between=", ", is_object=True, keep_ids=False,  # which begin at 0 in each answer
    ),
    markers=(ACTION,),
    frame=("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
    text_open="<|START_RESPONSE|>",
    shown=(ACTION_END,),
    reasoning=ReasoningMarks("<|START_THINKING|>", "<|END_THINKING|>"),
)  # fmt: skip
FORMATS = (FORMAT, R7B)
