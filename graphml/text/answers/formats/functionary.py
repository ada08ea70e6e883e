"""Functionary 3.1: `<function=NAME>` with arguments as JSON, code after `<|python_tag|>`; 3.2: recipients.

The prompt of 3.2 ends behind the `>>>` of the first recipient: `all`, or a tool.
"""

from __future__ import annotations

from graphml.text.answers.answer_format import AnswerFormat, WholeAnswerParser
from graphml.text.answers.call_sink import CallSink, json_text
from graphml.text.answers.call_syntax import CallReader, CallSyntax
from graphml.text.answers.formats.llama3 import PYTHON_TOOLS
from graphml.text.answers.json_calls import json_arguments
from graphml.text.answers.text_reader import CutError, Step, TextReader


def _code(reader: TextReader, calls: CallSink) -> Step[None]:
    parts: list[str] = []
    yield from reader.until((), parts.append)
    name = next((tool for tool in PYTHON_TOOLS if tool in calls.tools), "")
    calls.whole(name, json_text({"code": "".join(parts)}))


FORMAT = AnswerFormat(
    "functionary",
    found_by=(("<function=", "</function>"),),
    not_with=("<parameter=", "<tool_call>"),
    rank=2,
    syntax=CallSyntax("<function={name}>", "</function>"),
    markers=("<function=",),
    calls={"<|python_tag|>": _code},
)

NEXT, ALL = ">>>", "all\n"


def _answer(parser: WholeAnswerParser) -> Step[None]:
    """Read what is for each recipient; `>>>` before anything else is text."""
    reader = parser.reader
    names = {f"{name}\n": name for name in parser.calls.tools}
    stop: str | None = ""
    while stop is not None:
        whole = True
        try:
            recipient = yield from reader.known(ALL, *names)
        except CutError:
            recipient, whole = "", False
        if not recipient and reader.cut and not (whole and (yield from reader.peek())):
            break  # a name that was cut is no text
        if recipient in names:
            yield from parser.read_calls(stop + recipient, _call_of(names[recipient]))
        elif not recipient:
            parser.content(stop)
        stop = yield from reader.until((NEXT,), parser.content, partial=not parser.calls.n)
    parser.keep_space()


def _call_of(name: str) -> CallReader:
    def read(reader: TextReader, calls: CallSink) -> Step[None]:
        yield from json_arguments(reader, calls, name)

    return read


RECIPIENTS = AnswerFormat(
    "functionary-v3.2",
    found_by=((">>>all", ">>>${recipient}"),),
    rank=3,
    whole=_answer,
    text_open=ALL,
    syntax=CallSyntax("{name}\n", "", between=NEXT),
    trigger=r"(?:\A|>>>)((?:NAMES)\n)",
)
FORMATS = (FORMAT, RECIPIENTS)
