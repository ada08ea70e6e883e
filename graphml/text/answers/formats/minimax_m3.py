"""MiniMax M3: calls as nested elements, all of whose tags follow one mark; lists are elements named item."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from graphml.text.answers.answer_format import AnswerFormat, ReasoningMarks
from graphml.text.answers.call_sink import CallSink, json_text
from graphml.text.answers.call_syntax import CallSyntax
from graphml.text.answers.grammar_rules import NAME, GrammarRules, joined, json_terminal, text_bounds
from graphml.text.answers.parameter_calls import json_of, text_of
from graphml.text.answers.schema_types import (
    ALL_TYPES,
    choices,
    definitions,
    json_types,
    leaves,
    members,
    required,
)
from graphml.text.answers.text_reader import Emit, Step, TextReader, fail

MARK: Final = "]<]minimax[>["
END: Final = f"{MARK}</invoke>"
ITEM: Final = "item"
MAX_LEVELS: Final = 50


@dataclass(frozen=True)
class ElementArguments:
    """Arguments as elements, `<city>Rome</city>`; null is an element that is not there."""

    nested = True

    @property
    def opens(self) -> tuple[str, ...]:
        """What arguments begin with."""
        return (MARK,)

    def grammar(self, rules: GrammarRules, schema: Mapping[str, Any]) -> str:
        """Elements of a schema in any order, and the end of the call."""
        return joined(_elements(rules, schema, schema), rules.spell(END))

    def takes(self, key: str, others: Collection[str]) -> bool:
        """Whether a name can be read; those of elements within, too."""
        return bool(key) and ">" not in key and key[0] != "/"

    def read(self, reader: TextReader, calls: CallSink, name: str, id: str = "") -> Step[None]:
        """Read elements up to the end of the call."""
        calls.begin(name, id)
        schema = calls.tools[name]
        properties = members(schema)
        while True:
            yield from reader.space()
            if (yield from reader.literal(f"{MARK}<", END)) == END:
                break
            key = yield from reader.within((">",))
            value = yield from _value(reader, properties.get(key), schema, 0)
            calls.key(key)
            calls.piece(value)
        calls.close()

    def form(self) -> str:
        """One element."""
        return f"{MARK}<KEY>VALUE{MARK}</KEY>{END}"

    def written(self, arguments: Mapping[str, Any], schema: Mapping[str, Any] | None = None) -> str:
        """Elements and the end; schema: of the tool, which decides what is text."""
        return _written(arguments, schema or {}, schema or {}) + END


def _stated(schema: Any, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a value that is there follows; of several alternatives nothing is known but their types."""
    there = [leaf for leaf in leaves(schema, root) if _kinds(leaf, root) or "type" not in leaf]
    return there[0] if len(there) == 1 else {"type": sorted(json_types(schema, root) or ALL_TYPES)}


def _kinds(schema: Mapping[str, Any], root: Mapping[str, Any]) -> frozenset[str]:
    """The types of a value that is there."""
    return json_types(schema, root) - {"null"}


def _elements(rules: GrammarRules, schema: Mapping[str, Any], root: Mapping[str, Any]) -> str:
    needed = required(schema)
    listed = [
        (_element(rules, name, member, root), name in needed) for name, member in members(schema).items()
    ]
    others = ""
    if schema.get("additionalProperties", not listed) is not False:
        value = joined(rules.until(f"{MARK}</"), NAME, '">"')
        others = joined(rules.spell(f"{MARK}<"), NAME, '">"', value)
    return rules.any_order("element", listed, "", others)


def _element(rules: GrammarRules, name: str, schema: Any, root: Mapping[str, Any]) -> str:
    """The rule of an element with what its schema says in it."""
    stated = _stated(schema, root)
    key = json.dumps([name, stated], sort_keys=True, default=str)
    return rules.shared("element", key, lambda: _element_of(rules, name, stated, root))


def _element_of(rules: GrammarRules, name: str, stated: Mapping[str, Any], root: Mapping[str, Any]) -> str:
    opened = joined(rules.spell(f"{MARK}<"), json.dumps(f"{name}>", ensure_ascii=False))
    closed = f"{MARK}</{name}>"
    kinds, listed = _kinds(stated, root), choices(stated)
    if listed is not None:
        texts = [text_of(value, kinds) for value in listed if value is not None]
        ways = " | ".join(json.dumps(text, ensure_ascii=False) for text in texts)
        return joined(opened, f"({ways})", rules.spell(closed))
    if kinds == {"object"} and members(stated):
        return joined(opened, _elements(rules, stated, root), rules.spell(closed))
    if kinds == {"array"}:
        return joined(opened, f"{_element(rules, ITEM, stated.get('items'), root)}*", rules.spell(closed))
    if kinds and not kinds & {"string", "object", "array"}:
        value = json_terminal({**definitions(root), **stated, "type": sorted(kinds)})
        return joined(opened, rules.new("value", value), rules.spell(closed))
    return joined(opened, rules.until(closed, text_bounds(stated if kinds == {"string"} else {})))


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


def _text(reader: TextReader, emit: Emit) -> Step[str]:
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
