"""Llama 3.1 to 3.3: one JSON object that is the whole answer, or what follows `<|python_tag|>`."""

from __future__ import annotations

import re
from typing import Final

from graphml.text.answers.answer_format import AnswerFormat
from graphml.text.answers.call_sink import CallSink, json_text
from graphml.text.answers.call_syntax import CallSyntax
from graphml.text.answers.json_calls import json_call
from graphml.text.answers.text_reader import Step, TextReader, fail, parsed

PYTHON_TOOLS: Final = ("python", "ipython", "code_interpreter")
"""Names of a tool that runs code: what follows the tag and is no call is code for it."""
_BUILT_IN: Final = re.compile(r"\s*([\w.-]+)\.call\((.*)\)\s*", re.DOTALL)
_ARGUMENT: Final = re.compile(r'\s*(\w+)\s*=\s*("(?:[^"\\]|\\.)*"|[^\s,"]+)\s*(?:,|$)', re.DOTALL)


def _bare(reader: TextReader, calls: CallSink) -> Step[None]:
    while True:
        yield from json_call(reader, calls, only=True)
        if (yield from reader.space()) != ";":
            break
        yield from reader.literal(";")


def _python_tag(reader: TextReader, calls: CallSink) -> Step[None]:
    if (yield from reader.space()) == "{":
        yield from _bare(reader, calls)
        return
    parts: list[str] = []
    yield from reader.until((), parts.append)
    text = "".join(parts)
    match = _BUILT_IN.fullmatch(text)
    if match is not None:
        calls.whole(match[1], json_text(_arguments(match[2])))
        return
    name = next((tool for tool in PYTHON_TOOLS if tool in calls.tools), "")
    calls.whole(name, json_text({"code": text}))


def _arguments(text: str) -> dict[str, object]:
    """The values of `city="Rome", days=3`."""
    arguments: dict[str, object] = {}
    at = 0
    while text[at:].strip():
        match = _ARGUMENT.match(text, at)
        if match is None:
            fail("arguments that are no name=value pairs")
        arguments[match[1]], at = parsed(match[2]), match.end()
    return arguments


FORMAT = AnswerFormat(
    "llama3",
    found_by=(("<|start_header_id|>", "ipython"), ("<|python_tag|>", "<|eom_id|>")),
    not_with=("<tool_call>", "<function=", ">>>all"),
    rank=1,
    calls={"<|python_tag|>": _python_tag},
    bare=_bare,
    syntax=CallSyntax('{{"name": "{name}", "parameters": ', "}}", between="; ", is_object=True),
)
