"""Seed-OSS: Qwen3-Coder's tags under names of its own."""

from __future__ import annotations

from graphml.text.answers.answer_format import AnswerFormat, CallSyntax, ReasoningMarks
from graphml.text.answers.call_sink import CallSink
from graphml.text.answers.formats.qwen3_coder import PARAMETERS
from graphml.text.answers.parameter_calls import parameter_call
from graphml.text.answers.text_reader import Step, TextReader


def _read(reader: TextReader, calls: CallSink) -> Step[None]:
    yield from reader.space()
    yield from reader.literal("<function=")
    name = yield from reader.within((">",))
    yield from parameter_call(reader, calls, name.strip(), PARAMETERS)
    yield from reader.closing("</seed:tool_call>")


FORMAT = AnswerFormat(
    "seed",
    found_by=(("<seed:tool_call>",),),
    rank=3,
    calls={"<seed:tool_call>": _read},
    syntax=CallSyntax(
        "<seed:tool_call>\n<function={name}>\n", "</function>\n</seed:tool_call>", between="\n",
        parameters=PARAMETERS,
    ),
    reasoning=ReasoningMarks("<seed:think>", "</seed:think>"),
)  # fmt: skip
