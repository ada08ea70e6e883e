"""Command R: a list of actions as JSON, after `Action:` in a fence; in R7B behind `<|START_ACTION|>`."""

from __future__ import annotations

from graphml.text.answers.answer_format import AnswerFormat, CallSyntax, ReasoningMarks
from graphml.text.answers.call_sink import CallSink
from graphml.text.answers.json_calls import json_calls
from graphml.text.answers.text_reader import Step, TextReader

ACTION, ACTION_END = "<|START_ACTION|>", "<|END_ACTION|>"


def _fenced(reader: TextReader, calls: CallSink) -> Step[None]:
    yield from json_calls(reader, calls, keep_ids=False)
    yield from reader.closing("```")


def _marked(reader: TextReader, calls: CallSink) -> Step[None]:
    yield from json_calls(reader, calls, keep_ids=False)  # they count from 0 in each answer
    yield from reader.closing(ACTION_END)


FORMAT = AnswerFormat(
    "command-r",
    found_by=(("Action:", '"tool_name"', "```json"),),
    calls={"Action:\n```json": _fenced, "Action: ```json": _fenced},
    syntax=CallSyntax(
        '{{"tool_name": "{name}", "parameters": ', "}}", begin="Action:\n```json\n[", between=", ", end="]```"
    ),
)
R7B = AnswerFormat(
    "command-r7b",
    found_by=((ACTION, "tool_name"),),
    rank=2,
    calls={ACTION: _marked},
    shown=(ACTION_END, "<|START_RESPONSE|>", "<|END_RESPONSE|>"),
    reasoning=ReasoningMarks("<|START_THINKING|>", "<|END_THINKING|>"),
    syntax=CallSyntax(
        '{{"tool_call_id": "0", "tool_name": "{name}", "parameters": ', "}}", begin=ACTION + "[",
        end="]" + ACTION_END, between=", ",
    ),
)  # fmt: skip
FORMATS = (FORMAT, R7B)
