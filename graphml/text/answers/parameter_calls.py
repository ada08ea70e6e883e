"""Arguments that stand one by one between markers, as text: `<parameter=city>Rome</parameter>`.

One declaration, `ParameterArguments`, is how they are forced, read and written. The text of a string is as
it is, all else is JSON; the tool's schema decides. Knows schemas of parameters; nothing of calls' frames.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from graphml.text.answers.call_sink import CallSink, json_text
from graphml.text.answers.grammar_rules import (
    ANYTHING,
    MOST_COUNTED,
    NAME,
    GrammarRules,
    escaped,
    joined,
    json_terminal,
    text_bounds,
    without,
)
from graphml.text.answers.schema_types import (
    ALL_TYPES,
    TYPES,
    choices,
    definitions,
    goes_on,
    json_types,
    leaves,
    members,
    required,
)
from graphml.text.answers.text_reader import CutError, Emit, MalformedError, Step, TextReader, fail, parsed

_TEXT: Final = frozenset(["string"])


@dataclass(frozen=True)
class ParameterArguments:
    """The markers: key_open KEY key_close value_open VALUE value_close, and after the last the end.

    lines: a line end at either side of a value is not part of it; gap: between a value and what follows.
    typed: what stands between the key and key_close where the value is text as it is; json_typed: where it is
    JSON, for each JSON type. section: what a text may stand between; in_section: a text with one of these
    does where it is written.
    A value ends with the first value_close behind which another parameter or the end comes.
    """

    key_open: str
    key_close: str
    value_close: str
    end: str
    value_open: str = ""
    lines: bool = True
    gap: str = "\n"
    typed: str = ""
    json_typed: Mapping[str, str] = field(default_factory=dict)
    section: tuple[str, str] = ("", "")
    in_section: tuple[str, ...] = ()
    nested = False

    @property
    def opens(self) -> tuple[str, ...]:
        """What arguments begin with."""
        return self.key_open, self.end

    # As a grammar

    def grammar(self, rules: GrammarRules, schema: Mapping[str, Any]) -> str:
        """The parameters of a schema, each at most once in any order, and the end."""
        wanted = required(schema)
        ordered = sorted(members(schema).items(), key=lambda member: member[0] not in wanted)
        rest = schema.get("additionalProperties", False)
        if not ordered and rest is False:
            return rules.spell(self.end)
        name, n = rules.reserved("parameter"), min(len(ordered), MOST_COUNTED)
        n_required = min(sum(key in wanted for key, _ in ordered), n)
        endless = rest is not False or len(ordered) > n
        ways: list[str] = []
        for bit, (key, member) in enumerate(ordered):
            counted = bit < n
            place = _ParameterPlace(
                rules, schema, f"{name}::set_bit({bit})" if counted else f"{name}::_",
                free=f"bit_clear({bit})" if counted else "",
                done=_all_set(n_required, bit), full="" if endless else _all_set(n, bit),
                last=n == 1 and not endless,
            )  # fmt: skip
            ways += self._ways(place, json.dumps(key, ensure_ascii=False), member)
        if rest is not False:
            known = "|".join(escaped(key) for key, _ in ordered)
            key = rules.new("key", f"{NAME} & ~/({known})/" if known else NAME)
            ways += self._ways(
                _ParameterPlace(rules, schema, f"{name}::_", done=_all_set(n_required)), key, rest
            )
        rules.add(f"{name}::_", "\n  | ".join(ways))
        begun = joined(rules.spell(self.key_open), f"{name}::0x0")
        return begun if n_required else f"({begun} | {rules.spell(self.end)})"

    def _ways(self, place: _ParameterPlace, key: str, member: Any) -> list[str]:
        """A parameter behind its key_open, up to behind the next one's or the end."""
        ways: list[str] = []
        values = _values(member, place.schema, bool(self.typed))
        for is_text in sorted({is_text for is_text, _ in values}):
            as_text = is_text or not self.typed
            attributes = [self.typed] if as_text else dict.fromkeys(self.json_typed.values())
            opens = [f'" {attribute}' if attribute else "" for attribute in attributes]
            opened = " | ".join(
                place.rules.spell(open + self.key_close + self.value_open + self._line) for open in opens
            )
            opened = joined(key, f"({opened})")
            bodies = [body for kind, body in values if kind == is_text]
            literals = [body for body in bodies if not body.startswith("/")]
            if literals:
                value = joined(opened, place.rules.new("value", " | ".join(literals)))
                ways += self._closed_ways(place, value, self._line + self.value_close)
            for text in bodies:
                if text.startswith("/"):
                    ways += self._text_ways(place, opened, text)
        return ways

    def _closed_ways(self, place: _ParameterPlace, value: str, close: str) -> list[str]:
        """A value whose end is known by itself, and what follows."""
        spell = place.rules.spell
        more = joined(value, spell(close + self.gap + self.key_open), place.then)
        last = joined(value, spell(close + self.gap + self.end))
        return [
            *([] if place.last else [_when(more, place.free, place.left)]),
            _when(last, place.free, place.done),
        ]

    def _text_ways(self, place: _ParameterPlace, opened: str, text: str) -> list[str]:
        """A text as it is, or in a section; as it is it does not begin as a section does."""
        begin, end = self.section
        if not begin:
            return self._ended_ways(place, opened, text, self.value_close)
        as_it_is = f"{text} & ~/{escaped(begin)}(.|\\n)*/"
        within = joined(opened, place.rules.spell(begin))
        return [
            *self._ended_ways(place, opened, as_it_is, self.value_close),
            *self._ended_ways(place, within, text, end + self.value_close),
        ]

    def _ended_ways(self, place: _ParameterPlace, opened: str, text: str, value_close: str) -> list[str]:
        """A text, which ends where the value is closed and what may follow does.

        Where the call may not end, or no parameter is left, the begin of it is no text either.
        """
        rules = place.rules
        if any(map(rules.is_token, (value_close, self.key_open, self.end))):
            value = joined(opened, rules.until(self._line + value_close, text))
            return self._closed_ways(place, value, "")
        more, last = (f"{self._line}{value_close}{self.gap}{end}" for end in (self.key_open, self.end))

        def up_to(close: str, *followers: str) -> str:
            closed = rf"{escaped(value_close)}\s*({'|'.join(map(escaped, followers))})"
            return joined(opened, rules.up_to(f"/{escaped(close)}/", without(closed, text)))

        ways = []
        if not place.last:
            both = joined(up_to(more, self.key_open, self.end), place.then)
            ways.append(_when(both, place.free, place.done, place.left))
        if place.done:
            unfinished = joined(up_to(more, self.key_open, self.end[:2]), place.then)
            ways.append(_when(unfinished, place.free, f"not({place.done})"))
        if not place.last:
            ended = up_to(last, self.key_open, self.end)
            ways.append(_when(ended, place.free, place.done, place.left))
        if place.full or place.last:
            ended = up_to(last, self.key_open[:2], self.end)
            ways.append(_when(ended, place.free, place.done, place.full))
        return ways

    @property
    def _line(self) -> str:
        return "\n" if self.lines else ""

    # As a reader

    def takes(self, key: str, others: Collection[str]) -> bool:
        """Whether a name of the schema can be read."""
        return bool(key) and not goes_on(key, '"' if self.typed else self.key_close, others)

    def read(self, reader: TextReader, calls: CallSink, name: str, id: str = "") -> Step[None]:
        """Read the parameters of a call of this tool, and the end."""
        calls.begin(name, id)
        schema = calls.tools[name]
        properties = members(schema)
        seen: set[str] = set()
        while True:
            yield from reader.space()
            if (yield from reader.literal(self.key_open, self.end)) == self.end:
                calls.close()
                return
            key, as_text = yield from self._key(reader, properties)
            if not key or key in seen:
                fail(f"the parameter {key!r} is named twice or has no name")
            if self.value_open:
                yield from reader.space()
                yield from reader.literal(self.value_open.strip())
            calls.key(key)
            seen.add(key)
            types, close = json_types(properties.get(key), schema), self.value_close
            if self.section[0] and (yield from reader.optional(self.section[0])):
                as_text, close = "string" in (types or _TEXT), self.section[1] + close
            if as_text or (as_text is None and types == _TEXT):
                calls.piece('"')
                yield from self._text(reader, _JsonString(calls, self.lines), close)
                calls.piece('"')
                continue
            if as_text is False or (types and "string" not in types):
                value = yield from self._json(reader, close)
                if value:
                    calls.piece(value)
                    continue
            parts: list[str] = []
            yield from self._text(reader, parts.append, close)
            text = "".join(parts)
            if self.lines:
                text = text.removeprefix("\n").removesuffix("\n")
            calls.piece(json_of(text, types if as_text is None else frozenset()))

    def _key(self, reader: TextReader, properties: Mapping[str, Any]) -> Step[tuple[str, bool | None]]:
        """A name, and whether its value is text where that is said."""
        if not self.typed:
            known = yield from reader.optional(*(name + self.key_close for name in properties))
            if known:
                return known.removesuffix(self.key_close), None
            return (yield from reader.within((self.key_close,))).strip(), None
        known = yield from reader.optional(*(f'{name}"' for name in properties))
        rest = yield from reader.within((self.key_close,))
        if known:
            return known[:-1], rest.strip() == self.typed
        key, _, rest = rest.partition('"')
        return key.strip(), rest.strip() == self.typed

    def _json(self, reader: TextReader, close: str) -> Step[str]:
        """Read a JSON value, in whose strings may be what ends values, and over its end; "" if it is none."""
        start = reader.at
        try:
            if (yield from reader.space()) in ("{", "[", '"'):
                value = yield from reader.json_value()
                yield from reader.space()
                yield from reader.literal(close)
                return value
        except CutError:
            raise
        except MalformedError:
            pass
        reader.at = start
        return ""

    def _text(self, reader: TextReader, emit: Emit, close: str) -> Step[None]:
        """Read a value and over its end."""
        while True:
            yield from reader.whole_until((close,), emit)
            if (yield from reader.follows((self.key_open, self.end))):
                return
            emit(close)

    # As text

    def form(self) -> str:
        """One parameter."""
        return self.written({"KEY": "VALUE"}, {"properties": {"KEY": {"type": "string"}}})

    def written(self, arguments: Mapping[str, Any], schema: Mapping[str, Any] | None = None) -> str:
        """The parameters and the end; schema: of the tool, which decides what is text."""
        schema = schema or {}
        parts = []
        for key, value in arguments.items():
            types = json_types(members(schema).get(key), schema)
            is_text = isinstance(value, str) and (bool(self.typed) or types == _TEXT)
            attribute = self.typed if is_text else self.json_typed.get(TYPES[type(value)], "")
            typed = f'" {attribute}' if attribute else ""
            text = value if is_text else text_of(value, types)
            if isinstance(value, str) and any(part in value for part in self.in_section):
                text = value.join(self.section)
            opened = f"{self.key_open}{key}{typed}{self.key_close}{self.value_open}{self._line}"
            parts.append(f"{opened}{text}{self._line}{self.value_close}{self.gap}")
        return "".join(parts) + self.end


def _values(schema: Any, root: Mapping[str, Any], typed: bool) -> list[tuple[bool, str]]:
    """The ways to write a value: whether it is text as it is, and what it follows, of a text an expression.

    typed: whether what is text is said, so that JSON needs a way beside any text.
    """
    types = json_types(schema, root)
    ways = dict.fromkeys(way for leaf in leaves(schema, root) for way in _ways_of(leaf, types, root, typed))
    free = [way for way in ways if way[1] == ANYTHING]
    return [*free, *(way for way in ways if typed and not way[0])] if free else list(ways)


def _ways_of(
    leaf: Mapping[str, Any], types: frozenset[str], root: Mapping[str, Any], typed: bool
) -> list[tuple[bool, str]]:
    """The ways of one alternative; types: of them all, which decide what is in quotes."""
    listed, own = choices(leaf), json_types(leaf, root)
    if listed is not None:
        spelled = [(typed and isinstance(value, str), value) for value in listed]
        texts = [
            (is_text, value if is_text else json_text(value) if typed else text_of(value, types))
            for is_text, value in spelled
        ]
        return [(is_text, json.dumps(text, ensure_ascii=False)) for is_text, text in texts]
    kinds = own or ALL_TYPES
    as_json = json_terminal({**definitions(root), **leaf, "type": sorted(kinds - _TEXT)})
    if "string" not in kinds:
        return [(False, as_json)]
    text = text_bounds(leaf) if kinds == _TEXT else ANYTHING
    return [(True, text), *([(False, as_json)] if typed and kinds != _TEXT else [])]


@dataclass(frozen=True)
class _ParameterPlace:
    """Where a parameter is among the others.

    then: what goes on behind it. Conditions: free: it did not come; done: all others that must come did;
    full: all others did, so that no more may. last: there is no other one.
    """

    rules: GrammarRules
    schema: Mapping[str, Any]
    then: str
    free: str = ""
    done: str = ""
    full: str = ""
    last: bool = False

    @property
    def left(self) -> str:
        """The condition that another one may come."""
        return f"not({self.full})" if self.full else ""


def _all_set(n: int, but: int = -1) -> str:
    """The condition that the first n bits but for one are set."""
    ranges = [(0, n)] if not 0 <= but < n else [(0, but), (but + 1, n)]
    return _and(*(f"is_ones([{low}:{high}])" for low, high in ranges if low < high))


def _and(*conditions: str) -> str:
    stated = [condition for condition in conditions if condition]
    return stated[0] if len(stated) == 1 else f"and({stated[0]}, {_and(*stated[1:])})" if stated else ""


def _when(body: str, *conditions: str) -> str:
    condition = _and(*conditions)
    return f"{body} %if {condition}" if condition else body


class _JsonString:
    """Emits the pieces of a text as parts of a JSON string; `lines` as of the syntax."""

    def __init__(self, calls: CallSink, lines: bool) -> None:
        self._calls, self._lines, self._first, self._held = calls, lines, lines, ""

    def __call__(self, text: str) -> None:
        if self._first and text:
            text, self._first = text.removeprefix("\n"), False
        text = self._held + text
        self._held = "\n" if self._lines and text.endswith("\n") else ""
        self._calls.piece(json_text(text.removesuffix("\n") if self._held else text)[1:-1])


def json_of(text: str, types: frozenset[str]) -> str:
    """A value as JSON: what the text spells if that is of these types, else the text as a string.

    A string that spells a value of another of the types stands in quotes, as JSON; so does, where there are
    no types, whatever is spelled so.
    """
    try:
        value = parsed(text)
    except MalformedError:
        return json_text(text)
    kind = TYPES[type(value)]
    if kind == "string":
        quoted = not types or ("string" not in types) or _is_other(value, types)
        return text.strip() if quoted else json_text(text)
    return text.strip() if not types or _fits(kind, types) else json_text(text)


def _fits(kind: str, types: frozenset[str]) -> bool:
    return kind in types or (kind == "integer" and "number" in types)


def _is_other(text: str, types: frozenset[str]) -> bool:
    """Whether a text is read as anything but itself."""
    return bool(parsed(json_of(text, types)) != text)


def text_of(value: Any, types: frozenset[str]) -> str:
    """The text of a value, of which `json_of` makes it again."""
    if isinstance(value, str) and (types == _TEXT or not _is_other(value, types)):
        return value
    return json_text(value)
