"""Solar Open: turns of the assistant for reasoning, text and calls, whose ids are ten letters and digits."""

from __future__ import annotations

import secrets
import string
from typing import Final

from graphml.text.answers.answer_format import AnswerFormat, ReasoningMarks
from graphml.text.answers.call_sink import CallSink
from graphml.text.answers.call_syntax import CallSyntax
from graphml.text.answers.json_calls import json_arguments
from graphml.text.answers.text_reader import Step, TextReader

CALLS, CALL = "<|tool_calls|>", "<|tool_call:begin|>"
NAME, ARGUMENTS, CALL_END = "<|tool_call:name|>", "<|tool_call:args|>", "<|tool_call:end|>"
_LETTERS: Final = string.ascii_lowercase + string.digits


def _read(reader: TextReader, calls: CallSink) -> Step[None]:
    yield from reader.space()
    yield from reader.literal(CALL)
    while True:
        id = yield from reader.within((NAME,))
        name = yield from reader.within((ARGUMENTS,))
        yield from json_arguments(reader, calls, name.strip(), id.strip())
        yield from reader.closing(CALL_END)
        calls.end()
        yield from reader.space()
        if not (yield from reader.optional(CALL)):
            break


def _id() -> str:
    return "".join(secrets.choice(_LETTERS) for _ in range(10))


FORMAT = AnswerFormat(
    "solar",
    found_by=((CALLS, CALL, ARGUMENTS),),
    rank=3,
    syntax=CallSyntax(f"{CALL}{{id}}{NAME}{{name}}{ARGUMENTS}", CALL_END, begin=CALLS),
    calls={CALLS: _read},
    frame=("<|content|>", "<|end|>"),
    text_open="<|content|>",
    shown=(CALL, NAME, ARGUMENTS, CALL_END),
    new_id=_id,
    reasoning=ReasoningMarks("<|think|>", "<|end|><|begin|>assistant"),
    reasons=True,
)
