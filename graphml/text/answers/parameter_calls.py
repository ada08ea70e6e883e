"""Tool calls whose arguments stand one by one between markers, as text: `<parameter=city>Rome</parameter>`.

What is no text of a string parameter is JSON; the tool's schema decides. Knows schemas of parameters.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from graphml.text.answers.call_sink import CallSink
from graphml.text.answers.text_reader import MalformedError, Step, TextReader, fail, parsed

_TYPES: Final[dict[type, str]] = {
    str: "string", bool: "boolean", int: "integer", float: "number", dict: "object", list: "array",
    type(None): "null",
}  # fmt: skip


@dataclass(frozen=True)
class ParameterSyntax:
    """The markers: key_open KEY key_close value_open VALUE value_close, and after the last the call's end.

    lines: a line end at either side of a value is not part of it. typed: what stands between the key and
    key_close where the value is text as it is; anything else there means JSON.
    """

    key_open: str
    key_close: str
    value_close: str
    end: str
    value_open: str = ""
    lines: bool = True
    typed: str = ""


class _TextValue:
    """Emits the pieces of a text as parts of a JSON string; `lines` as of the syntax."""

    def __init__(self, calls: CallSink, lines: bool) -> None:
        self._calls, self._lines, self._first, self._held = calls, lines, lines, ""

    def __call__(self, text: str) -> None:
        if self._first and text:
            text, self._first = text.removeprefix("\n"), False
        text = self._held + text
        self._held = "\n" if self._lines and text.endswith("\n") else ""
        self._write(text.removesuffix("\n") if self._held else text)

    def _write(self, text: str) -> None:
        self._calls.piece(json.dumps(text, ensure_ascii=False)[1:-1])


def parameter_call(reader: TextReader, calls: CallSink, name: str, syntax: ParameterSyntax) -> Step[None]:
    """Read the parameters of a call of this tool, and the call's end."""
    calls.begin(name)
    properties = calls.tools[name].get("properties", {})
    seen: set[str] = set()
    while True:
        yield from reader.space()
        if (yield from reader.literal(syntax.key_open, syntax.end)) == syntax.end:
            calls.piece("}" if seen else "{}")
            return
        key = yield from reader.within((syntax.key_close,))
        as_text = None
        if syntax.typed:
            key, _, rest = key.partition('"')
            as_text = rest.strip() == syntax.typed
        key = key.strip()
        if not key or key in seen:
            fail(f"the parameter {key!r} is named twice or has no name")
        if syntax.value_open:
            yield from reader.space()
            yield from reader.literal(syntax.value_open)
        calls.piece(("{" if not seen else ", ") + json.dumps(key, ensure_ascii=False) + ": ")
        seen.add(key)
        types = json_types(properties.get(key, {}))
        yield from _value(reader, calls, syntax, types, as_text)


def _value(
    reader: TextReader, calls: CallSink, syntax: ParameterSyntax, types: set[str], as_text: bool | None
) -> Step[None]:
    stop = (syntax.value_close,)
    if as_text or (as_text is None and types == {"string"}):
        calls.piece('"')
        if (yield from reader.until(stop, _TextValue(calls, syntax.lines))) is None:
            fail(f"{syntax.value_close} is missing")
        calls.piece('"')
        return
    text = yield from reader.within(stop)
    if syntax.lines:
        text = text.removeprefix("\n").removesuffix("\n")
    calls.piece(json_of(text, types))


def json_of(text: str, types: set[str]) -> str:
    """A value as JSON: what the text spells if that is of these types, else the text as a string."""
    try:
        kind = _TYPES[type(parsed(text))]
    except MalformedError:
        kind = "string"
    if kind == "integer" and "number" in types:
        kind = "number"
    fits = kind in types if types else kind != "string"
    return text.strip() if fits and kind != "string" else json.dumps(text, ensure_ascii=False)


def json_types(schema: Any, level: int = 0) -> set[str]:
    """The JSON types that a schema allows, as far as it says so; empty where it says nothing."""
    if not isinstance(schema, Mapping) or level > 8:
        return set()
    stated = schema.get("type")
    if isinstance(stated, str):
        return {stated}
    if isinstance(stated, (list, tuple)):
        return {kind for kind in stated if isinstance(kind, str)}
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        return {_TYPES.get(type(value), "") for value in values}
    kinds: set[str] = set()
    for branch in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        kinds |= json_types(branch, level + 1)
    return kinds
