"""MiniMax M2, and DeepSeek V3.2 under other names: `<invoke name="...">` with a tag for each parameter."""

from __future__ import annotations

from graphml.text.answers.answer_format import AnswerFormat
from graphml.text.answers.call_syntax import CallSyntax
from graphml.text.answers.parameter_calls import ParameterArguments
from graphml.text.answers.schema_types import ALL_TYPES

D = "｜DSML｜"
FORMAT = AnswerFormat(
    "minimax",
    found_by=(("minimax:tool_call>", "<invoke name="),),
    rank=2,
    syntax=CallSyntax(
        '<invoke name="{name}">\n', "\n", begin="<minimax:tool_call>\n", end="</minimax:tool_call>",
        arguments=ParameterArguments('<parameter name="', '">', "</parameter>", "</invoke>", lines=False),
    ),
    markers=("<minimax:tool_call>",),
)  # fmt: skip
DSML = AnswerFormat(
    "deepseek-v3.2",
    found_by=(("DSML", "function_calls", "invoke name="),),
    rank=3,
    syntax=CallSyntax(
        f'<{D}invoke name="{{name}}">\n', "\n", begin=f"<{D}function_calls>\n", end=f"</{D}function_calls>",
        arguments=ParameterArguments(
            f'<{D}parameter name="', '">', f"</{D}parameter>", f"</{D}invoke>", lines=False,
            typed='string="true', json_typed=dict.fromkeys(ALL_TYPES - {"string"}, 'string="false'),
        ),
    ),
    markers=(f"<{D}function_calls>",),
)  # fmt: skip
FORMATS = (FORMAT, DSML)
