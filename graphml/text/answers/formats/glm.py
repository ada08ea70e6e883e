"""GLM 4.5 to 4.7: the tool's name, then `<arg_key>` and `<arg_value>` pairs, between `<tool_call>` tags."""

from __future__ import annotations

from graphml.text.answers.answer_format import AnswerFormat
from graphml.text.answers.call_syntax import CallSyntax
from graphml.text.answers.parameter_calls import ParameterArguments

PARAMETERS = ParameterArguments(
    "<arg_key>", "</arg_key>", "</arg_value>", "</tool_call>", value_open="\n<arg_value>", lines=False
)
FORMAT = AnswerFormat(
    "glm",
    found_by=(("<tool_call>", "<arg_key>"),),
    rank=2,
    syntax=CallSyntax("<tool_call>{name}\n", "", between="\n", arguments=PARAMETERS),
    markers=("<tool_call>",),
)
