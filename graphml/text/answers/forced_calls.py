"""Grammars that force tool calls in a format: Lark of llguidance, with each tool's schema for its arguments.

Each schema is a JSON value of its own there, so that its references lead to its own definitions. Knows
formats; its caller prepares the schemas, and says what is a token of its own in a vocabulary.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final, TypeAlias

from graphml.text.answers.answer_format import AnswerFormat, CallSyntax, ReasoningMarks
from graphml.text.answers.call_sink import Schemas
from graphml.text.answers.formats import harmony
from graphml.text.answers.parameter_calls import ParameterSyntax, json_types

_COMPACT: Final = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
ANYTHING, SPACE, NAME = r"/(.|\n)*/", r"/[ \n]*/", r"/[A-Za-z0-9_.\-]{1,64}/"
_PARTS: Final = re.compile(r'"[^"]*"|[^"]+')

Schema: TypeAlias = Any  # bool or mapping, as json.loads gives it
Spell = Callable[[str], str]
"""A text as terminals of the grammar; what is a control token is named by its id."""


def forced_calls(
    format: AnswerFormat,
    tools: Schemas,
    spell: Spell,
    several: bool = True,
    marks: ReasoningMarks | None = None,
    inside: bool = False,
    response: Schema | None = None,
) -> str:
    """The grammar of an answer that is one call, or several, of these tools.

    marks, inside: reasoning may come before, or is what the answer begins within. response: the schema of an
    answer without calls, None where there must be one. The format has a syntax.
    """
    syntax = format.syntax
    assert syntax is not None
    rules = _GrammarRules(spell if response is None else partial(_as_json, spell))
    calls = [rules.call(syntax, name, schema) for name, schema in tools.items()]
    any_call = " | ".join(calls)
    rules.add("call", any_call)
    count = ("+" if syntax.alone else "*") if several and syntax.several else ""
    more = f" ({spell(syntax.between)} call){count}" if count else ""
    before = _reasoning(format, spell, rules, marks, inside)
    answer = _joined(spell(syntax.begin), "call" + more, spell(syntax.end))
    if syntax.alone:
        answer = f"(call | {answer})" if count else "call"
    if response is not None:
        answer = f"({answer} | {rules.add('response', _json(response))})"
    return rules.text(_joined(before, answer))


def _as_json(spell: Spell, text: str) -> str:
    """A text in the parts that JSON has: llguidance tells a call from other JSON by these alone."""
    return _joined(*map(spell, _PARTS.findall(text))) if text.startswith("{") else spell(text)


def call_trigger(format: AnswerFormat, marks: ReasoningMarks | None = None, inside: bool = False) -> str:
    """A regular expression whose group is where calls begin in an answer; of reasoning it finds nothing.

    marks, inside: reasoning may come before, or is what the answer begins within. The format has a syntax.
    """
    syntax = format.syntax
    assert syntax is not None
    before = syntax.before.partition("{name}")[0].replace("{{", "{")
    opening = "" if syntax.alone else syntax.begin
    opening += before
    marker = max((marker for marker in format.calls if opening.startswith(marker)), key=len, default="")
    bare = not marker and format.bare is not None  # without a marker it is a call at the begin alone
    text = r"\s*" if bare else "(?s:.*?)"
    begin = f"(?:{re.escape(syntax.begin)})?" if syntax.alone else ""
    word = f"({begin}{re.escape(marker or opening)})"
    if marks is None:
        return rf"\A{text}{word}"
    opened, closed = rf"\s*{re.escape(marks.open)}", f"(?>(?s:.*?){re.escape(marks.close)})"
    if inside:
        return rf"\A{closed}{text}{word}"
    return rf"\A(?:{opened}{closed}|(?!{opened})){text}{word}"


def _joined(*parts: str) -> str:
    return " ".join(part for part in parts if part)


def _json(schema: Schema) -> str:
    """A JSON value; how it is spaced is not the schema's to say."""
    return "%json " + json.dumps({**(schema if isinstance(schema, Mapping) else {}), "x-guidance": _COMPACT})


class _GrammarRules:
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
            arguments = self.arguments(schema)
        return self.add(f"call_{len(self._rules)}", _joined(before, arguments, after))

    def arguments(self, schema: Schema) -> str:
        """The arguments of a call as JSON: an object."""
        stated = schema if isinstance(schema, Mapping) else {}
        return self.add(f"arguments_{len(self._rules)}", _json({"type": "object", **stated}))

    def _parameters(self, syntax: ParameterSyntax, schema: Mapping[str, Any]) -> str:
        required = schema.get("required", ())
        shared = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
        parts = []
        line = "\n" if syntax.lines else ""
        for key, value in schema.get("properties", {}).items():
            opened = f"{syntax.key_open}{key}{syntax.key_close}{syntax.value_open}{line}"
            stated = value if isinstance(value, Mapping) else {}
            part = f"{self._spell(opened)} {self._one_value(syntax, stated, shared)} {self._spell(chr(10))}"
            parts.append(part if key in required else f"({part})?")
        rest = schema.get("additionalProperties", False)
        if rest is not False:
            parts.append(self._others(syntax, rest, shared))
        return " ".join(parts)

    def _others(self, syntax: ParameterSyntax, schema: Schema, shared: Mapping[str, Any]) -> str:
        """Parameters of any other name."""
        line = "\n" if syntax.lines else ""
        named = f"{self._spell(syntax.key_open)} {NAME} {self._spell(syntax.key_close)}"
        value = self._one_value(syntax, schema if isinstance(schema, Mapping) else {}, shared)
        return f"({_joined(named, self._spell(syntax.value_open + line), value, self._spell(chr(10)))})*"

    def _one_value(self, syntax: ParameterSyntax, value: Mapping[str, Any], shared: Mapping[str, Any]) -> str:
        close = ("\n" if syntax.lines else "") + syntax.value_close
        if "string" in json_types(value) and "enum" not in value:
            return self.until(close)
        return f"{self.add(f'value_{len(self._rules)}', _value(value, shared))} {self._spell(close)}"

    def text(self, start: str) -> str:
        return "\n".join([f"start: {start}", *self._rules]) + "\n"


def _value(schema: Mapping[str, Any], shared: Mapping[str, Any]) -> str:
    """A value that is no text: JSON; of strings to choose from, the strings as they are."""
    values = schema.get("enum")
    if isinstance(values, list) and values and all(isinstance(value, str) for value in values):
        return " | ".join(json.dumps(value, ensure_ascii=False) for value in values)
    return _json({**shared, **schema})


def _reasoning(
    format: AnswerFormat, spell: Spell, rules: _GrammarRules, marks: ReasoningMarks | None, inside: bool
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
