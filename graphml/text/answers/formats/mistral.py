"""Mistral: `[TOOL_CALLS]` and an array of JSON, or since 2025 the name, `[ARGS]` and the arguments."""

from __future__ import annotations

from graphml.text.answers.answer_format import AnswerFormat, ReasoningMarks
from graphml.text.answers.call_sink import CallSink, short_id
from graphml.text.answers.call_syntax import CallSyntax
from graphml.text.answers.json_calls import json_arguments, json_calls
from graphml.text.answers.text_reader import Step, TextReader


def _read(reader: TextReader, calls: CallSink) -> Step[None]:
    if (yield from reader.space()) in ("[", "{"):
        yield from json_calls(reader, calls)
        return
    parts: list[str] = []
    id = ""
    stop = yield from reader.whole_until(("[ARGS]", "[CALL_ID]", "{"), parts.append)
    if stop == "[CALL_ID]":
        id = (yield from reader.within(("[ARGS]",))).strip()
    elif stop == "{":
        reader.at -= 1
    yield from json_arguments(reader, calls, "".join(parts).strip(), id)


_REASONING = ReasoningMarks("[THINK]", "[/THINK]")
ARRAY = AnswerFormat(
    "mistral-array",
    found_by=(("[TOOL_CALLS]",),),
    calls={"[TOOL_CALLS]": _read},
    new_id=short_id,
    reasoning=_REASONING,
    syntax=CallSyntax(
        '{{"name": "{name}", "arguments": ',
        "}}",
        begin="[TOOL_CALLS][",
        between=", ",
        end="]",
        is_object=True,
    ),
)
FORMAT = AnswerFormat(
    "mistral",
    found_by=(("[TOOL_CALLS]", "[ARGS]"),),
    rank=1,
    calls={"[TOOL_CALLS]": _read},
    shown=("[ARGS]", "[CALL_ID]"),
    new_id=short_id,
    reasoning=_REASONING,
    syntax=CallSyntax("[TOOL_CALLS]{name}[ARGS]", ""),
)
FORMATS = (FORMAT, ARRAY)
