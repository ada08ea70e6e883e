"""MiniMax M2, and DeepSeek V3.2 under other names: `<invoke name="...">` with a tag for each parameter."""

from __future__ import annotations

from graphml.text.answers.answer_format import AnswerFormat, CallReader, CallSyntax
from graphml.text.answers.call_sink import CallSink
from graphml.text.answers.parameter_calls import ParameterSyntax, parameter_call
from graphml.text.answers.text_reader import Step, TextReader


def _reader(prefix: str, end: str, syntax: ParameterSyntax) -> CallReader:
    """Reads calls that begin with <{prefix}invoke, up to the end of them all."""
    begin = f'<{prefix}invoke name="'

    def read(reader: TextReader, calls: CallSink) -> Step[None]:
        yield from reader.space()
        yield from reader.literal(begin)
        while True:
            name = yield from reader.within(('">',))
            yield from parameter_call(reader, calls, name, syntax)
            calls.end()
            yield from reader.space()
            if not (yield from reader.optional(begin)):
                break
        yield from reader.closing(end)

    return read


D = "｜DSML｜"
PARAMETERS = ParameterSyntax('<parameter name="', '">', "</parameter>", "</invoke>", lines=False)
FORMAT = AnswerFormat(
    "minimax",
    found_by=(("minimax:tool_call>", "<invoke name="),),
    rank=2,
    calls={
        "<minimax:tool_call>": _reader("", "</minimax:tool_call>", PARAMETERS)
    },
    syntax=CallSyntax(
        '<invoke name="{name}">\n', "</invoke>\n", begin="<minimax:tool_call>\n", end="</minimax:tool_call>",
        parameters=PARAMETERS,
    ),
)  # fmt: skip
DSML = AnswerFormat(
    "deepseek-v3.2",
    found_by=(("DSML", "function_calls", "invoke name="),),
    rank=3,
    calls={
        f"<{D}function_calls>": _reader(
            D, f"</{D}function_calls>",
            ParameterSyntax(
                f'<{D}parameter name="', '">', f"</{D}parameter>", f"</{D}invoke>", lines=False,
                typed='string="true',
            ),
        )
    },
)  # fmt: skip
FORMATS = (FORMAT, DSML)
