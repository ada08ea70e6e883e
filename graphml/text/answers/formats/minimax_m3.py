"""MiniMax M3: calls as nested elements, all of whose tags follow one mark; lists are elements named item."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from graphml.text.answers.answer_format import AnswerFormat, ReasoningMarks
from graphml.text.answers.call_sink import CallSink, json_text
from graphml.text.answers.call_syntax import CallSyntax
from graphml.text.answers.grammar_rules import NAME, GrammarRules, joined, json_terminal
from graphml.text.answers.parameter_calls import json_of, text_of
from graphml.text.answers.schema_types import (
    branches,
    choices,
    definitions,
    followed,
    json_types,
    members,
    required,
    text_bounds,
)
from graphml.text.answers.text_reader import Step, TextReader, fail

MARK: Final = "]<]minimax[>["
END: Final = f"{MARK}</invoke>"
ITEM: Final = "item"
MAX_LEVELS: Final = 50


@dataclass(frozen=True)
class ElementArguments:
    """Arguments as elements, `<city>Rome</city>`; null is an element that is not there."""

    @property
    def opens(self) -> tuple[str, ...]:
        """What arguments begin with."""
        return (MARK,)

    def grammar(self, rules: GrammarRules, schema: Mapping[str, Any]) -> str:
        """Elements of a schema in any order, and the end of the call."""
        return joined(_elements(rules, schema, schema, 0), rules.spell(END))

    def read(self, reader: TextReader, calls: CallSink, name: str, id: str = "") -> Step[None]:
        """Read elements up to the end of the call."""
        calls.begin(name, id)
        schema, separator = calls.tools[name], "{"
        properties = members(schema)
        while True:
            yield from reader.space()
            if (yield from reader.literal(f"{MARK}<", END)) == END:
                break
            key = yield from reader.within((">",))
            value = yield from _value(reader, properties.get(key), schema, 0)
            calls.piece(f"{separator}{json_text(key)}: {value}")
            separator = ", "
        calls.piece("{}" if separator == "{" else "}")

    def form(self) -> str:
        """One element."""
        return f"{MARK}<KEY>VALUE{MARK}</KEY>{END}"

    def written(self, arguments: Mapping[str, Any], schema: Mapping[str, Any] | None = None) -> str:
        """Elements and the end; schema: of the tool, which decides what is text."""
        return _written(arguments, schema or {}, schema or {}) + END


def _stated(schema: Any, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a value follows: of alternatives with null the other one."""
    stated = followed(schema, root)
    others = [branch for branch in branches(stated, root) if branch.get("type") != "null"]
    parts = stated.get("allOf")
    if len(others) == 1:
        return _stated(others[0], root)
    return _stated(parts[0], root) if isinstance(parts, list) and len(parts) == 1 else stated


def _kinds(schema: Mapping[str, Any], root: Mapping[str, Any]) -> frozenset[str]:
    """The types of a value that is there."""
    return json_types(schema, root) - {"null"}


def _elements(rules: GrammarRules, schema: Mapping[str, Any], root: Mapping[str, Any], level: int) -> str:
    needed = required(schema)
    listed = [
        (_element(rules, json.dumps(name, ensure_ascii=False), name, member, root, level), name in needed)
        for name, member in members(schema).items()
    ]
    rest = schema.get("additionalProperties", not listed)
    if rest is False or level > 0:
        return rules.any_order("element", listed)
    value = joined(rules.until(f"{MARK}</"), NAME, '">"')
    return rules.any_order("element", listed, "", joined(rules.spell(f"{MARK}<"), NAME, '">"', value))


def _element(
    rules: GrammarRules, tag: str, name: str, schema: Any, root: Mapping[str, Any], level: int
) -> str:
    """An element with what its schema says in it, over its end."""
    opened, closed = joined(rules.spell(f"{MARK}<"), tag, '">"'), f"{MARK}</{name}>"
    stated = _stated(schema, root)
    kinds, listed = _kinds(stated, root), choices(stated)
    if listed is not None:
        texts = [text_of(value, kinds) for value in listed if value is not None]
        ways = " | ".join(json.dumps(text, ensure_ascii=False) for text in texts)
        return joined(opened, f"({ways})", rules.spell(closed))
    if kinds == {"object"} and members(stated) and level < MAX_LEVELS:
        return joined(opened, _elements(rules, stated, root, level + 1), rules.spell(closed))
    if kinds == {"array"} and level < MAX_LEVELS:
        item = rules.new(
            "item", _element(rules, json.dumps(ITEM), ITEM, stated.get("items"), root, level + 1)
        )
        return joined(opened, f"{item}*", rules.spell(closed))
    if kinds and not kinds & {"string", "object", "array"}:
        value = json_terminal({**definitions(root), **stated, "type": sorted(kinds)})
        return joined(opened, rules.new("value", value), rules.spell(closed))
    return joined(
        opened, rules.until(closed, text_bounds(stated) if kinds == {"string"} else text_bounds({}))
    )


def _value(reader: TextReader, schema: Any, root: Mapping[str, Any], level: int) -> Step[str]:
    """Read what is in an element, and over its end; returns it as JSON."""
    if level > MAX_LEVELS:
        fail("nested too deeply")
    stated = _stated(schema, root)
    kinds = _kinds(stated, root)
    parts: list[str] = []
    tag = yield from _text(reader, parts.append)
    text = "".join(parts)
    if tag.startswith("/"):
        if not text.strip() and kinds in ({"object"}, {"array"}):
            return "{}" if kinds == {"object"} else "[]"
        return json_of(text, kinds)
    if text.strip():
        fail(f"text beside the element {tag!r:.40}")
    is_list = kinds == {"array"} or (kinds != {"object"} and tag == ITEM)
    properties, values = members(stated), list[str]()
    while not tag.startswith("/"):
        member = stated.get("items") if is_list else properties.get(tag)
        value = yield from _value(reader, member, root, level + 1)
        values.append(value if is_list else f"{json_text(tag)}: {value}")
        tag = yield from _text(reader, _only_space)
    return f"[{', '.join(values)}]" if is_list else f"{{{', '.join(values)}}}"


def _text(reader: TextReader, emit: Any) -> Step[str]:
    """Read text up to a tag and over it; returns its name, behind a slash where it closes."""
    yield from reader.whole_until((f"{MARK}<",), emit)
    return (yield from reader.within((">",)))


def _only_space(text: str) -> None:
    if text.strip():
        fail("text between elements")


def _written(value: Any, schema: Any, root: Mapping[str, Any]) -> str:
    stated = _stated(schema, root)
    if isinstance(value, Mapping):
        properties = members(stated)
        return "".join(
            f"{MARK}<{name}>{_written(member, properties.get(name), root)}{MARK}</{name}>"
            for name, member in value.items()
            if member is not None
        )
    if isinstance(value, list):
        items = (_written(item, stated.get("items"), root) for item in value)
        return "".join(f"{MARK}<{ITEM}>{item}{MARK}</{ITEM}>" for item in items)
    return text_of(value, _kinds(stated, root))


FORMAT = AnswerFormat(
    "minimax-m3",
    found_by=(("]<]minimax[>[", "<mm:think>"),),
    rank=4,
    syntax=CallSyntax(
        f'{MARK}<invoke name="{{name}}">', "\n", begin=f"{MARK}<tool_call>\n", end=f"{MARK}</tool_call>",
        arguments=ElementArguments(),
    ),
    markers=(f"{MARK}<tool_call>",),
    shown=(MARK,),
    reasoning=ReasoningMarks("<mm:think>", "</mm:think>"),
    reasons=True,
)  # fmt: skip
