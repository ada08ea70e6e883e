"""Kimi K3: tags between `<|open|>` and `<|sep|>`, with the type of each argument."""

from __future__ import annotations

from graphml.text.answers.answer_format import AnswerFormat, ReasoningMarks
from graphml.text.answers.call_syntax import CallSyntax
from graphml.text.answers.parameter_calls import ParameterArguments
from graphml.text.answers.schema_types import ALL_TYPES

OPEN, CLOSE, SEPARATOR = "<|open|>", "<|close|>", "<|sep|>"


def _opened(tag: str) -> str:
    return OPEN + tag + SEPARATOR


def _closed(tag: str) -> str:
    return CLOSE + tag + SEPARATOR


def _type(kind: str) -> str:
    return f'type="{"number" if kind == "integer" else kind}'


FORMAT = AnswerFormat(
    "kimi-k3",
    found_by=((OPEN, CLOSE, "xtml"),),
    rank=4,
    syntax=CallSyntax(
        f'{OPEN}call tool="{{name}}" index="{{number}}"{SEPARATOR}', "", begin=_opened("tools"),
        end=_closed("tools"),
        arguments=ParameterArguments(
            f'{OPEN}argument key="', f'"{SEPARATOR}', _closed("argument"), _closed("call"), lines=False,
            gap="", typed=_type("string"),
            json_typed={kind: _type(kind) for kind in sorted(ALL_TYPES - {"string"})},
        ),
    ),
    markers=(_opened("tools"),),
    frame=(_opened("response"), _closed("response"), _closed("message")),
    text_open=_opened("response"),
    shown=(OPEN, CLOSE, SEPARATOR),
    reasoning=ReasoningMarks(_opened("think"), _closed("think")),
    reasons=True,
)  # fmt: skip
