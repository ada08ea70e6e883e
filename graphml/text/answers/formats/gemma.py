"""Gemma 4 and FunctionGemma: `call:NAME{key:value}`, with strings in quotes that are tokens."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from graphml.text.answers.answer_format import AnswerFormat, ReasoningMarks
from graphml.text.answers.call_sink import CallSink, json_text
from graphml.text.answers.call_syntax import CallSyntax
from graphml.text.answers.grammar_rules import NAME, GrammarRules, joined, json_terminal, text_bounds
from graphml.text.answers.schema_types import (
    ALL_TYPES,
    choices,
    definitions,
    goes_on,
    json_types,
    leaves,
    members,
    properties_of,
    required,
)
from graphml.text.answers.text_reader import CutError, Step, TextReader, fail, parsed

_WORD: Final = re.compile(r"[^\s,:{}\[\]<]*")
_BARE_KEY: Final = re.compile(r"[^\s:,{}\[\]]*")
MAX_LEVELS: Final = 50


@dataclass(frozen=True)
class QuotedArguments:
    """Arguments as an object whose keys are bare and whose strings are between marks, as they are."""

    quote: str
    nested = True

    @property
    def opens(self) -> tuple[str, ...]:
        """What arguments begin with."""
        return ("{",)

    def grammar(self, rules: GrammarRules, schema: Mapping[str, Any]) -> str:
        """An object that follows the schema, as far as types, members, elements and choices say."""
        return _Values(rules, self.quote, schema).of_object(schema)

    def takes(self, key: str, others: Collection[str]) -> bool:
        """Whether a key of the schema can be read; those of objects within, too."""
        return bool(key) and not (key[0].isspace() or key[0] == "}" or goes_on(key, ":", others))

    def read(self, reader: TextReader, calls: CallSink, name: str, id: str = "") -> Step[None]:
        """Read an object."""
        yield from reader.literal("{")
        calls.begin(name, id)
        schema = calls.tools[name]
        listed = members(schema)
        while (yield from reader.space()) != "}":
            key = yield from self._key(reader, listed)
            value = yield from self._value(reader, 0, listed.get(key), schema)
            calls.key(key)
            calls.piece(value)
            yield from reader.comma("}")
        yield from reader.literal("}")
        calls.close()

    def _key(self, reader: TextReader, listed: Collection[str]) -> Step[str]:
        """A key and over its colon; one of the schema's is as it is, whatever is in it."""
        yield from reader.space()
        known = yield from reader.known(*(f"{key}:" for key in listed))
        if known:
            return known[:-1]
        if (yield from reader.optional(self.quote)):
            key = yield from reader.within((self.quote,))
        elif (yield from reader.peek()) == '"':
            key = yield from reader.json_string()
        else:
            key = yield from reader.word(_BARE_KEY)
        yield from reader.space()
        yield from reader.literal(":")
        if not key:
            fail("a key is missing")
        return key

    def _value(self, reader: TextReader, level: int, schema: Any, root: Mapping[str, Any]) -> Step[str]:
        """Read a value of this schema, which says its keys; returns it as JSON."""
        if level > MAX_LEVELS:
            fail("nested too deeply")
        first = yield from reader.space()
        if not first:
            raise CutError("a value is missing")
        if (yield from reader.optional(self.quote)):
            return json_text((yield from reader.within((self.quote,))))
        if first == '"':
            return (yield from reader.json_value())
        if first == "{":
            yield from reader.literal("{")
            pairs: list[str] = []
            listed = properties_of(schema, root)
            while (yield from reader.space()) != "}":
                key = yield from self._key(reader, listed)
                value = yield from self._value(reader, level + 1, listed.get(key), root)
                pairs.append(f"{json_text(key)}: {value}")
                yield from reader.comma("}")
            yield from reader.literal("}")
            return f"{{{', '.join(pairs)}}}"
        if first == "[":
            yield from reader.literal("[")
            elements: list[str] = []
            items = {"anyOf": [leaf.get("items", {}) for leaf in leaves(schema, root)]}
            while (yield from reader.space()) != "]":
                elements.append((yield from self._value(reader, level + 1, items, root)))
                yield from reader.comma("]")
            yield from reader.literal("]")
            return f"[{', '.join(elements)}]"
        word = yield from reader.word(_WORD)
        parsed(word)
        return word

    def form(self) -> str:
        """One member."""
        return "{KEY:VALUE}"

    def written(self, arguments: Mapping[str, Any], schema: Mapping[str, Any] | None = None) -> str:
        """An object."""
        return _written(arguments, self.quote)


def _written(value: Any, quote: str) -> str:
    if isinstance(value, str):
        return quote + value + quote
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{_written(member, quote)}" for key, member in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(_written(element, quote) for element in value) + "]"
    return json.dumps(value)


class _Values:
    """Rules of values that follow the schemas of a document."""

    def __init__(self, rules: GrammarRules, quote: str, root: Mapping[str, Any]) -> None:
        self._rules, self._quote, self._root = rules, quote, root
        self._definitions = definitions(root)

    def of_object(self, schema: Mapping[str, Any]) -> str:
        """An object of this schema; of one that lists nothing, any."""
        needed, listed = required(schema), members(schema)
        rest = schema.get("additionalProperties", not listed)
        described = [
            (joined(json.dumps(f"{name}:", ensure_ascii=False), self.of(member)), name in needed)
            for name, member in listed.items()
        ]
        others = "" if rest is False else joined(NAME, '":"', self.of(rest))
        return joined('"{"', self._rules.any_order("member", described, '","', others), '"}"')

    def of(self, schema: Any) -> str:
        """What a value of this schema is."""
        return "(" + " | ".join(self._of_leaf(leaf) for leaf in leaves(schema, self._root)) + ")"

    def _of_leaf(self, leaf: Mapping[str, Any]) -> str:
        key = json.dumps([self._quote, leaf, self._definitions], sort_keys=True, default=str)
        return self._rules.shared("value", key, lambda: self._ways(leaf))

    def _ways(self, schema: Mapping[str, Any]) -> str:
        listed = choices(schema)
        if listed is not None:
            return " | ".join(self._spelled(value) for value in listed)
        kinds = json_types(schema, self._root) or ALL_TYPES
        ways = []
        if "string" in kinds:
            quote = self._rules.spell(self._quote)
            ways.append(joined(quote, self._rules.until(self._quote, text_bounds(schema))))
        if "object" in kinds:
            ways.append(self.of_object(schema))
        if "array" in kinds:
            element = self.of(schema.get("items", {}))
            low, high = (schema.get(word) for word in ("minItems", "maxItems"))
            first = f'{element} ("," {element})*'
            if isinstance(high, int) or (isinstance(low, int) and low > 1):
                first = self._counted(element, low or 0, high)
            ways.append(f'"[" ({first}){"" if low else "?"} "]"')
        plain = sorted(kinds & {"integer", "number", "boolean", "null"})
        if plain:
            bounds = {word: schema[word] for word in ("minimum", "maximum", "multipleOf") if word in schema}
            ways.append(json_terminal({**bounds, "type": plain}))
        return " | ".join(ways)

    @staticmethod
    def _counted(element: str, low: Any, high: Any) -> str:
        least = max(low - 1, 0) if isinstance(low, int) else 0
        most = str(max(high - 1, 0)) if isinstance(high, int) and high < 1000 else ""
        return f'{element} ("," {element}){{{least},{most}}}'

    def _spelled(self, value: Any) -> str:
        if isinstance(value, str):
            quote = self._rules.spell(self._quote)
            return joined(quote, json.dumps(value, ensure_ascii=False) if value else "", quote)
        return json.dumps(_written(value, self._quote), ensure_ascii=False)


FORMAT = AnswerFormat(
    "gemma4",
    found_by=(("<|tool_call>", "<tool_call|>"),),
    rank=3,
    syntax=CallSyntax("<|tool_call>call:{name}", "<tool_call|>", arguments=QuotedArguments('<|"|>')),
    markers=("<|tool_call>",),
    shown=("<tool_call|>", '<|"|>'),
    reasoning=ReasoningMarks("<|channel>thought", "<channel|>"),
)
FUNCTION_GEMMA = AnswerFormat(
    "functiongemma",
    found_by=(("<start_function_call>",),),
    rank=3,
    syntax=CallSyntax(
        "<start_function_call>call:{name}", "<end_function_call>", arguments=QuotedArguments("<escape>")
    ),
    markers=("<start_function_call>",),
    shown=("<end_function_call>", "<escape>"),
)
FORMATS = (FORMAT, FUNCTION_GEMMA)
