"""Qwen3-Coder, Qwen 3.5, Step 3.5, Nemotron 3: `<function=NAME>` with a tag for each parameter."""

from __future__ import annotations

from graphml.text.answers.answer_format import AnswerFormat
from graphml.text.answers.call_syntax import CallSyntax
from graphml.text.answers.parameter_calls import ParameterArguments

PARAMETERS = ParameterArguments("<parameter=", ">", "</parameter>", "</function>")
FORMAT = AnswerFormat(
    "qwen3-coder",
    found_by=(("<tool_call>", "<function=", "<parameter="),),
    rank=2,
    syntax=CallSyntax(
        "<tool_call>\n<function={name}>\n", "\n</tool_call>", between="\n", arguments=PARAMETERS
    ),
    markers=("<tool_call>", "<function="),
)
