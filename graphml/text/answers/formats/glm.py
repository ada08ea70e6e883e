"""GLM 4.5 to 4.7: the tool's name, then `<arg_key>` and `<arg_value>` pairs, between `<tool_call>` tags."""

from __future__ import annotations

from graphml.text.answers.answer_format import AnswerFormat, CallSyntax
from graphml.text.answers.call_sink import CallSink
from graphml.text.answers.parameter_calls import ParameterSyntax, parameter_call
from graphml.text.answers.text_reader import Step, TextReader

PARAMETERS = ParameterSyntax(
    "<arg_key>", "</arg_key>", "</arg_value>", "</tool_call>", "<arg_value>", lines=False
)


def _read(reader: TextReader, calls: CallSink) -> Step[None]:
    parts: list[str] = []
    stop = yield from reader.until((PARAMETERS.key_open, PARAMETERS.end), parts.append)
    if stop is not None:  # the parameters begin with it
        reader.at -= len(stop)
    yield from parameter_call(reader, calls, "".join(parts).strip(), PARAMETERS)


FORMAT = AnswerFormat(
    "glm",
    found_by=(("<tool_call>", "<arg_key>"),),
    rank=2,
    calls={"<tool_call>": _read},
    syntax=CallSyntax("<tool_call>{name}\n", "</tool_call>", between="\n", parameters=PARAMETERS),
)
