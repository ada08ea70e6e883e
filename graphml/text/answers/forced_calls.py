"""Grammars that force tool calls in a format: Lark of llguidance, with each tool's schema for its arguments.

Knows formats and schemas; what is a token of its own in a vocabulary, its caller says.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from graphml.text.answers.answer_format import AnswerFormat, CallSyntax, ReasoningMarks
from graphml.text.answers.call_sink import Schemas
from graphml.text.answers.formats import generic, harmony
from graphml.text.answers.parameter_calls import ParameterSyntax, json_types

_COMPACT: Final = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
ANYTHING, SPACE = r"/(.|\n)*/", r"/[ \n]*/"

Spell = Callable[[str], str]
"""A text as terminals of the grammar; what is a control token is named by its id."""


def forced_calls(
    format: AnswerFormat,
    tools: Schemas,
    spell: Spell,
    several: bool = True,
    marks: ReasoningMarks | None = None,
    inside: bool = False,
) -> str:
    """The grammar of an answer that is one call, or several, of these tools.

    marks, inside: reasoning may come before, or is what the answer begins within. The format has a syntax.
    """
    syntax = format.syntax
    assert syntax is not None
    rules = _Rules(spell)
    calls = [rules.call(syntax, name, schema) for name, schema in tools.items()]
    one = " | ".join(calls)
    rules.add("call", one)
    more = f" ({spell(syntax.between)} call)*" if several and syntax.several else ""
    before = _reasoning(format, spell, rules, marks, inside)
    parts = [before, spell(syntax.begin), "call" + more, spell(syntax.end)]
    return rules.text(" ".join(part for part in parts if part))


def call_trigger(format: AnswerFormat, marks: ReasoningMarks | None = None, inside: bool = False) -> str:
    """A regular expression whose group is where calls begin in an answer; of reasoning it finds nothing.

    marks, inside: reasoning may come before, or is what the answer begins within. The format has a syntax.
    """
    syntax = format.syntax
    assert syntax is not None
    before = syntax.before.partition("{name}")[0].replace("{{", "{")
    opening = syntax.begin + before
    marker = max((one for one in format.calls if opening.startswith(one)), key=len, default="")
    bare = not marker and format.bare is not None  # without a marker it is a call at the begin alone
    text = r"\s*" if bare else "(?s:.*?)"
    word = f"({re.escape(marker or opening)})"
    if marks is None:
        return rf"\A{text}{word}"
    opened, closed = rf"\s*{re.escape(marks.open)}", f"(?>(?s:.*?){re.escape(marks.close)})"
    if inside:
        return rf"\A{closed}{text}{word}"
    return rf"\A(?:{opened}{closed}|(?!{opened})){text}{word}"


def generic_answer(tools: Schemas, several: bool, required: bool) -> str:
    """The grammar of the generic form: an object with calls, or with a response if no call is required."""
    call: dict[str, Any] = {"anyOf": [_generic_call(name, schema) for name, schema in tools.items()]}
    kinds = [_object({generic.CALL: call})]
    if several:
        kinds = [_object({generic.CALLS: {"type": "array", "items": call, "minItems": 1}})]
    if not required:
        kinds.append(_object({generic.RESPONSE: {"type": "string"}}))
    return f"start: {_json({'anyOf': kinds})}\n"


def _generic_call(name: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    return _object({"name": {"const": name}, "arguments": _closed(schema)})


def _closed(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A tool's schema, without other arguments than its own unless it says so itself."""
    return {"type": "object", "additionalProperties": False, **schema}


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object", "properties": properties, "required": list(properties),
        "additionalProperties": False,
    }  # fmt: skip


def _json(schema: Mapping[str, Any]) -> str:
    return "%json " + json.dumps({"x-guidance": _COMPACT, **schema})


class _Rules:
    """Rules of one grammar, numbered."""

    def __init__(self, spell: Spell) -> None:
        self._spell = spell
        self._rules: list[str] = []

    def add(self, name: str, body: str) -> str:
        self._rules.append(f"{name}: {body}")
        return name

    def until(self, stop: str) -> str:
        """Any text up to this one and over it."""
        spelled = self._spell(stop)
        if spelled.startswith("<["):  # a token, which no text has in it
            return f"{self.add(f'text_{len(self._rules)}', ANYTHING)} {spelled}"
        return self.add(f"text_{len(self._rules)}[suffix={json.dumps(stop)}]", ANYTHING).partition("[")[0]

    def call(self, syntax: CallSyntax, name: str, schema: Mapping[str, Any]) -> str:
        before = self._spell(syntax.before.format(name=name))
        after = self._spell(syntax.after.format(name=name))
        if syntax.parameters is not None:
            arguments = self._parameters(syntax.parameters, schema)
        else:
            arguments = self.add(f"arguments_{len(self._rules)}", _json(_closed(schema)))
        number = len(self._rules)
        return self.add(f"call_{number}", " ".join(part for part in (before, arguments, after) if part))

    def _parameters(self, syntax: ParameterSyntax, schema: Mapping[str, Any]) -> str:
        required = schema.get("required", ())
        shared = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
        parts = []
        line = "\n" if syntax.lines else ""
        for key, value in schema.get("properties", {}).items():
            opened = f"{syntax.key_open}{key}{syntax.key_close}{syntax.value_open}{line}"
            if "string" in json_types(value) and "enum" not in value:
                part = f"{self._spell(opened)} {self.until(line + syntax.value_close)}"
            else:
                of_json = self.add(f"value_{len(self._rules)}", _value(value, shared))
                part = f"{self._spell(opened)} {of_json} {self._spell(line + syntax.value_close)}"
            part += " " + self._spell("\n")
            parts.append(part if key in required else f"({part})?")
        return " ".join(parts)

    def text(self, start: str) -> str:
        return "\n".join([f"start: {start}", *self._rules]) + "\n"


def _value(schema: Mapping[str, Any], shared: Mapping[str, Any]) -> str:
    """A value that is no text: JSON; of strings to choose from, the strings as they are."""
    values = schema.get("enum")
    if isinstance(values, list) and values and all(isinstance(one, str) for one in values):
        return " | ".join(json.dumps(one, ensure_ascii=False) for one in values)
    return _json({**shared, **schema})


def _reasoning(
    format: AnswerFormat, spell: Spell, rules: _Rules, marks: ReasoningMarks | None, inside: bool
) -> str:
    if format.name == "harmony":
        end = rules.until("<|end|>")
        opened = spell(f"{harmony.CHANNEL}analysis{harmony.MESSAGE}")
        return f"({opened} {end} {spell(harmony.START + 'assistant')})?"
    if marks is None:
        return ""
    end = f"{rules.until(marks.close)} {rules.add('space', SPACE)}"
    return end if inside else f"({spell(marks.open)} {end})?"


def lark_spelling(text: str, controls: Iterable[tuple[str, int]]) -> str:
    """A text as terminals: controls, texts and their ids, as `<[id]>`, what is between as a literal."""
    for control, id in controls:
        if control and control in text:
            before, _, after = text.partition(control)
            rest = dict(controls)
            parts = (lark_spelling(before, rest.items()), f"<[{id}]>", lark_spelling(after, rest.items()))
            return " ".join(part for part in parts if part)
    return json.dumps(text, ensure_ascii=False) if text else ""
