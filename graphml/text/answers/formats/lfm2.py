"""LFM2: calls as Python writes them, `[f(city="Rome")]`, between `<|tool_call_start|>` and its end."""

from __future__ import annotations

import ast
import json
import warnings

from graphml.text.answers.answer_format import AnswerFormat
from graphml.text.answers.call_sink import CallSink
from graphml.text.answers.text_reader import MalformedError, Step, TextReader, fail

BEGIN, END = "<|tool_call_start|>", "<|tool_call_end|>"
MAX_CHARACTERS = 1 << 16  # Python's parser is not made for hostile texts


def _read(reader: TextReader, calls: CallSink) -> Step[None]:
    parts: list[str] = []
    yield from reader.until((END,), parts.append)
    read_calls = [_call(node, calls) for node in _nodes("".join(parts).strip())]
    for name, arguments in read_calls:
        calls.whole(name, arguments)


def _nodes(text: str) -> list[ast.expr]:
    if len(text) > MAX_CHARACTERS:
        fail("a call that is too long")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            body = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise MalformedError(str(error)) from None
    return body.elts if isinstance(body, ast.List) else [body]


def _call(node: ast.expr, calls: CallSink) -> tuple[str, str]:
    if not isinstance(node, ast.Call) or node.args or any(keyword.arg is None for keyword in node.keywords):
        fail("no call with named arguments")
    name = ast.unparse(node.func)
    if name not in calls.tools:
        fail(f"no tool {name}")
    try:
        values = {keyword.arg: ast.literal_eval(keyword.value) for keyword in node.keywords}
        return name, json.dumps(values, ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError, RecursionError, MemoryError) as error:
        raise MalformedError(str(error)) from None


FORMAT = AnswerFormat(
    "lfm2",
    found_by=(("<|tool_list_start|>",), (BEGIN,), ("List of tools: [",)),
    rank=2,
    calls={BEGIN: _read},
    shown=(END,),
)
