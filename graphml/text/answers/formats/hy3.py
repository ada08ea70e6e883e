"""Hy3: GLM's pairs of keys and values in a list of calls; all marks have a suffix."""

from __future__ import annotations

from typing import Final

from graphml.text.answers.answer_format import AnswerFormat, ReasoningMarks
from graphml.text.answers.call_syntax import CallSyntax
from graphml.text.answers.parameter_calls import ParameterArguments

S: Final = ":opensource"
"""What the template's variable HYTK says."""
BEGIN, SEPARATOR = f"<tool_calls{S}>", f"<tool_sep{S}>"
PARAMETERS = ParameterArguments(
    f"<arg_key{S}>", f"</arg_key{S}>", f"</arg_value{S}>", f"</tool_call{S}>", lines=False,
    value_open=f"\n<arg_value{S}>",
)  # fmt: skip
FORMAT = AnswerFormat(
    "hy3",
    found_by=(("HYTK", "<tool_calls{}>"),),
    rank=4,
    syntax=CallSyntax(
        f"<tool_call{S}>{{name}}{SEPARATOR}\n", "\n", begin=BEGIN + "\n", end=f"</tool_calls{S}>",
        arguments=PARAMETERS,
    ),
    markers=(BEGIN,),
    shown=(
        SEPARATOR, f"<tool_call{S}>", f"</tool_calls{S}>", f"<arg_value{S}>", PARAMETERS.key_open,
        PARAMETERS.key_close, PARAMETERS.value_close, PARAMETERS.end,
    ),
    reasoning=ReasoningMarks(f"<think{S}>", f"</think{S}>"),
    reasons=True,
)  # fmt: skip
