"""LFM2: calls as Python writes them, `[f(city="Rome")]`, between `<|tool_call_start|>` and its end.

Values are Python's or JSON's: `True` and `true`, `None` and `null`, line ends within quotes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from graphml.text.answers.answer_format import AnswerFormat
from graphml.text.answers.call_sink import CallSink, json_text
from graphml.text.answers.call_syntax import CallSyntax
from graphml.text.answers.grammar_rules import GrammarRules, joined, json_terminal
from graphml.text.answers.schema_types import (
    ALL_TYPES,
    choices,
    definitions,
    json_types,
    leaves,
    members,
    required,
)
from graphml.text.answers.text_reader import CutError, Step, TextReader, fail

BEGIN, END = "<|tool_call_start|>", "<|tool_call_end|>"
MAX_LEVELS: Final = 50
QUOTE: Final = '"'
_WORD: Final = re.compile(r"[-+.\w]*")
_CONSTANTS: Final = {
    "True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null",
}  # fmt: skip
_JSON_NUMBER: Final = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][-+]?\d+)?")
_KEY: Final = re.compile(r"[^\s=()\[\]{},\"']*")
_NAME: Final = r"/[A-Za-z_][A-Za-z0-9_]{0,63}/"
_NUMBER: Final = re.compile(r"[-+]?(\d+(_\d+)*)(\.\d*)?([eE][-+]?\d+)?|[-+]?\.\d+([eE][-+]?\d+)?")
_QUOTES: Final = ('"""', "'''", '"', "'")
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "0": "\0", "\n": ""}
_CODES: Final = {"x": 2, "u": 4, "U": 8}


@dataclass(frozen=True)
class PythonArguments:
    """Arguments by name, `(city="Rome", days=3)`."""

    @property
    def opens(self) -> tuple[str, ...]:
        """What arguments begin with."""
        return ("(",)

    def grammar(self, rules: GrammarRules, schema: Mapping[str, Any]) -> str:
        """The arguments of a schema in any order; values as JSON, constants in either spelling."""
        needed = required(schema)
        listed = [
            (
                joined(json.dumps(f"{name}=", ensure_ascii=False), _value(rules, member, schema)),
                name in needed,
            )
            for name, member in members(schema).items()
        ]
        rest = schema.get("additionalProperties", False)
        others = "" if rest is False else joined(_NAME, '"="', _value(rules, rest, schema))
        return joined('"("', rules.any_order("argument", listed, '", "', others), '")"')

    def read(self, reader: TextReader, calls: CallSink, name: str, id: str = "") -> Step[None]:
        """Read the arguments."""
        yield from reader.literal("(")
        calls.begin(name, id)
        while (yield from reader.space()) != ")":
            key = yield from reader.word(_KEY)
            yield from reader.space()
            yield from reader.literal("=")
            if not key:
                fail("no call with named arguments")
            value = yield from _read_value(reader, 0)
            calls.key(key)
            calls.piece(value)
            yield from reader.comma(")")
        yield from reader.literal(")")
        calls.close()

    def form(self) -> str:
        """One argument."""
        return "(KEY=VALUE)"

    def written(self, arguments: Mapping[str, Any], schema: Mapping[str, Any] | None = None) -> str:
        """The arguments; values as JSON, which is read alike."""
        return f"({', '.join(f'{name}={json_text(value)}' for name, value in arguments.items())})"


def _value(rules: GrammarRules, schema: Any, root: Mapping[str, Any]) -> str:
    stated = schema if isinstance(schema, Mapping) else {}
    types = json_types(stated, root) or ALL_TYPES
    words = {"boolean": ("True", "False"), "null": ("None",)}
    constants = [word for kind, spelled in words.items() if kind in types for word in spelled]
    if any(choices(leaf) is not None for leaf in leaves(stated, root)):
        constants = []
    ways = [json_terminal({**definitions(root), **stated}), *map(json.dumps, constants)]
    return rules.new("value", " | ".join(ways))


def _read_value(reader: TextReader, level: int) -> Step[str]:
    """Read a value of Python or JSON; returns it as JSON."""
    if level > MAX_LEVELS:
        fail("nested too deeply")
    first = yield from reader.space()
    if not first:
        raise CutError("a value is missing")
    if first in ("[", "("):
        yield from reader.literal(first)
        return (yield from _read_list(reader, "]" if first == "[" else ")", level))
    if first == "{":
        yield from reader.literal("{")
        return (yield from _read_mapping(reader, level))
    if first in ('"', "'"):
        return json_text((yield from _read_string(reader)))
    word = yield from reader.word(_WORD)
    if word in _CONSTANTS:
        return _CONSTANTS[word]
    if not _NUMBER.fullmatch(word) or len(word) > 400:
        if reader.ended and reader.at == len(reader.text):
            raise CutError("a value is not whole")
        fail(f"no value: {word!r:.40}")
    if _JSON_NUMBER.fullmatch(word):
        return word
    return json_text(int(word) if re.fullmatch(r"[-+]?[\d_]+", word) else float(word))


def _read_list(reader: TextReader, close: str, level: int) -> Step[str]:
    elements: list[str] = []
    while (yield from reader.space()) != close:
        elements.append((yield from _read_value(reader, level + 1)))
        yield from reader.comma(close)
    yield from reader.literal(close)
    return f"[{', '.join(elements)}]"


def _read_mapping(reader: TextReader, level: int) -> Step[str]:
    pairs: list[str] = []
    while (yield from reader.space()) != "}":
        key = yield from _read_value(reader, level + 1)
        yield from reader.space()
        yield from reader.literal(":")
        value = yield from _read_value(reader, level + 1)
        pairs.append(f"{key if key.startswith(QUOTE) else json_text(key)}: {value}")
        yield from reader.comma("}")
    yield from reader.literal("}")
    return f"{{{', '.join(pairs)}}}"


def _read_string(reader: TextReader) -> Step[str]:
    quote = yield from reader.literal(*_QUOTES)
    if quote in ('"', "'") and (yield from reader.optional(quote)):
        return ""
    parts: list[str] = []
    while (yield from reader.whole_until((quote, "\\"), parts.append)) != quote:
        parts.append((yield from _escape(reader)))
    return "".join(parts)


def _escape(reader: TextReader) -> Step[str]:
    kind = yield from reader.characters(1)
    if kind not in _CODES:
        return _ESCAPES.get(kind, kind if kind in "\\\"'/" else "\\" + kind)
    digits = yield from reader.characters(_CODES[kind])
    if not re.fullmatch("[0-9a-fA-F]+", digits) or int(digits, 16) > 0x10FFFF:
        return f"\\{kind}{digits}"
    return chr(int(digits, 16))


FORMAT = AnswerFormat(
    "lfm2",
    found_by=(("<|tool_list_start|>",), (BEGIN,), ("List of tools: [",)),
    rank=2,
    syntax=CallSyntax(
        "{name}", "", begin=BEGIN + "[", between=", ", end="]" + END, arguments=PythonArguments()
    ),
    markers=(BEGIN,),
    shown=(END,),
)
