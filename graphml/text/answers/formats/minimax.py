"""MiniMax M2, DeepSeek V3.2 and V4 under other names: `<invoke name="...">` with a tag for each parameter."""

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


def _dsml(name: str, block: str, not_with: tuple[str, ...] = ()) -> AnswerFormat:
    """DeepSeek's, whose calls are in a block of this name."""
    return AnswerFormat(
        name,
        found_by=(("DSML", f"{block}>", "invoke name="),),
        not_with=not_with,
        rank=3,
        syntax=CallSyntax(
            f'<{D}invoke name="{{name}}">\n', "\n", begin=f"<{D}{block}>\n", end=f"</{D}{block}>",
            arguments=ParameterArguments(
                f'<{D}parameter name="', '">', f"</{D}parameter>", f"</{D}invoke>", lines=False,
                typed='string="true', json_typed=dict.fromkeys(ALL_TYPES - {"string"}, 'string="false'),
            ),
        ),
        markers=(f"<{D}{block}>",),
    )  # fmt: skip


DSML = _dsml("deepseek-v3.2", "function_calls")
DSML_CALLS = _dsml("deepseek-v4", "tool_calls", not_with=("function_calls>",))
FORMATS = (FORMAT, DSML, DSML_CALLS)
