"""MiniCPM 5: `<function name="...">` with a tag for each parameter, whose text may be in a CDATA section."""

from __future__ import annotations

from graphml.text.answers.answer_format import AnswerFormat
from graphml.text.answers.call_syntax import CallSyntax
from graphml.text.answers.parameter_calls import ParameterArguments

FORMAT = AnswerFormat(
    "minicpm5",
    found_by=(('<function name="', '<param name="'),),
    rank=2,
    syntax=CallSyntax(
        '<function name="{name}">', "",
        arguments=ParameterArguments(
            '<param name="', '">', "</param>", "</function>", lines=False, gap="",
            section=("<![CDATA[", "]]>"), in_section=("<", "&", "\n"),
        ),
    ),
    markers=('<function name="',),
    shown=("<function",),
)  # fmt: skip
