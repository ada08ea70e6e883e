"""Qwen3-Coder, Qwen 3.5, Step 3.5, Nemotron 3: `<function=NAME>` with a tag for each parameter."""

from __future__ import annotations

from graphml.text.answers.answer_format import AnswerFormat, CallSyntax
from graphml.text.answers.call_sink import CallSink
from graphml.text.answers.parameter_calls import ParameterSyntax, parameter_call
from graphml.text.answers.text_reader import Step, TextReader

PARAMETERS = ParameterSyntax("<parameter=", ">", "</parameter>", "</function>")


def _read(reader: TextReader, calls: CallSink) -> Step[None]:
    yield from reader.space()
    yield from reader.literal("<function=")
    yield from _function(reader, calls)
    yield from reader.closing("</tool_call>")


def _function(reader: TextReader, calls: CallSink) -> Step[None]:
    name = yield from reader.within((">",))
    yield from parameter_call(reader, calls, name.strip(), PARAMETERS)


FORMAT = AnswerFormat(
    "qwen3-coder",
    found_by=(("<tool_call>", "<function=", "<parameter="),),
    rank=2,
    calls={"<tool_call>": _read, "<function=": _function},
    syntax=CallSyntax(
        "<tool_call>\n<function={name}>\n", "</function>\n</tool_call>", between="\n", parameters=PARAMETERS
    ),
)
