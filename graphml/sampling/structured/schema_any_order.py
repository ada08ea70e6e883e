"""A Lark grammar of a JSON schema in which the properties of an object come in any order.

llguidance's own translation wants the schema's order. Here an object is a rule for each set of required
properties that have come, so at most ten may be required; the parts without named properties stay
llguidance's. Knows schemas and llguidance's notation of Lark; compiles nothing. What it cannot translate is
UnsupportedSchemaError.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from graphml.sampling.structured.schema_merging import merged, types_of
from graphml.sampling.structured.schema_negation import other_texts
from graphml.sampling.structured.schema_words import (
    ANNOTATIONS,
    ASSERTIONS,
    Schema,
    UnsupportedSchemaError,
    every_schema,
    referred,
)

MAX_REQUIRED: Final = 10
MAX_RULES: Final = 20_000
MAX_LEVELS: Final = 60
_OF_OBJECTS: Final = {
    "type",
    "properties",
    "required",
    "additionalProperties",
    "minProperties",
    "maxProperties",
}
_OF_ARRAYS: Final = {"type", "items", "minItems", "maxItems"}
_NO_OBJECT: Final = ("properties", "required", "additionalProperties", "minProperties", "maxProperties")
_NO_ARRAY: Final = ("items", "minItems", "maxItems", "prefixItems", "additionalItems")


def any_order_grammar(root: Schema) -> str:
    """The grammar of a schema without `not`, `oneOf`, `if` and other choices."""
    return _Rules(root).text()


class _ImpossibleError(UnsupportedSchemaError):
    """No value is valid at some place."""


class _Rules:
    """Rules on their way to one text."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._rules: list[str] = []
        self._of_reference: dict[str, str] = {}
        self._levels = 0

    def text(self) -> str:
        start = self._value(self._root)
        return "\n".join([f"start: {start}", *self._rules, r"ws: /[ \t\r\n]*/"])

    def _new(self, body: str) -> str:
        name = self._reserved()
        self._define(name, body)
        return name

    def _reserved(self) -> str:
        self._rules.append("")
        if len(self._rules) > MAX_RULES:
            raise UnsupportedSchemaError(f"more than {MAX_RULES} rules")
        return f"r{len(self._rules) - 1}"

    def _define(self, name: str, body: str) -> None:
        self._rules[int(name[1:])] = f"{name}: {body}"

    def _value(self, schema: Schema) -> str:
        """The name of the rule of a schema's values."""
        if _is_plain(schema):
            return self._plain(schema)
        self._levels += 1
        if self._levels > MAX_LEVELS:
            raise UnsupportedSchemaError("schemas are nested too deeply")
        try:
            words = {
                one: value for one, value in schema.items() if one in ASSERTIONS and one not in ANNOTATIONS
            }
            if set(words) == {"$ref"}:
                return self._reference(words["$ref"])
            if "$ref" in words:
                target = referred(self._root, words.pop("$ref"))
                return self._value(merged(words, _assertions(target)))
            if "allOf" in words:
                for one in words.pop("allOf"):
                    words = merged(words, _assertions(self._target(one)))
                    if isinstance(words, bool):
                        return self._value(words)
                return self._value(words)
            if "anyOf" in words:
                branches = words.pop("anyOf")
                each = [merged(words, _assertions(self._target(one))) if words else one for one in branches]
                return self._either([partial(self._value, one) for one in each])
            return self._typed(words)
        finally:
            self._levels -= 1

    def _target(self, schema: Schema) -> Schema:
        for _ in range(MAX_LEVELS):
            if not isinstance(schema, dict) or set(schema) - ANNOTATIONS != {"$ref"}:
                return schema
            schema = referred(self._root, schema["$ref"])
        raise UnsupportedSchemaError("a $ref leads to itself")

    def _reference(self, reference: str) -> str:
        if reference not in self._of_reference:
            name = self._of_reference[reference] = self._reserved()
            self._define(name, self._value(referred(self._root, reference)))
        return self._of_reference[reference]

    def _either(self, makers: Sequence[Callable[[], str]]) -> str:
        """The rule of what any of these takes; those that take nothing are left out."""
        names = []
        for make in makers:
            with contextlib.suppress(_ImpossibleError):
                names.append(make())
        if not names:
            raise _ImpossibleError("no value is valid at some place")
        return names[0] if len(names) == 1 else self._new(" | ".join(dict.fromkeys(names)))

    def _typed(self, words: Mapping[str, Any]) -> str:
        """Objects and arrays by rules of their own, all other types by llguidance."""
        kinds = types_of(words)
        found = []
        if "object" in kinds:
            found.append(partial(self._object, {w: v for w, v in words.items() if w not in _NO_ARRAY}))
        if "array" in kinds:
            found.append(partial(self._array, {w: v for w, v in words.items() if w not in _NO_OBJECT}))
        rest = [one for one in kinds if one not in ("object", "array")]
        if rest:
            plain = {
                w: v for w, v in words.items() if w not in (*_NO_OBJECT, *_NO_ARRAY, "patternProperties")
            }
            found.append(partial(self._plain, {**plain, "type": rest}))
        return self._either(found)

    def _plain(self, schema: Schema) -> str:
        if schema is False:
            raise _ImpossibleError("no value is valid at some place")
        return self._new(f"%json {json.dumps({} if schema is True else schema)}")

    def _array(self, words: Mapping[str, Any]) -> str:
        words = {**words, "type": "array"}
        if _is_plain(words):
            return self._plain(words)
        _only(words, _OF_ARRAYS)
        item = self._value(words["items"])
        least, most = int(words.get("minItems", 0)), words.get("maxItems")
        if most is not None and (most < least or most == 0):
            raise UnsupportedSchemaError("maxItems is 0, or below minItems")
        more = self._new(f'ws "," ws {item}')
        times = f"{{{max(least - 1, 0)},{'' if most is None else int(most) - 1}}}"
        some = f"{item} {more}{times}"
        return self._new(f'"[" ws {some} ws "]"' if least else f'"[" ws ({some} ws)? "]"')

    def _object(self, words: Mapping[str, Any]) -> str:
        words = {**words, "type": "object"}
        if _is_plain(words):
            return self._plain(words)
        _only(words, _OF_OBJECTS)
        properties, required = words.get("properties", {}), list(dict.fromkeys(words.get("required", [])))
        rest = words.get("additionalProperties", True)
        if len(required) > MAX_REQUIRED:
            raise UnsupportedSchemaError(f"more than {MAX_REQUIRED} required properties")
        if words.get("minProperties", 0) > len(required) or "maxProperties" in words:
            raise UnsupportedSchemaError("minProperties and maxProperties")
        members = []
        for name in required:
            schema = properties.get(name, rest)
            if schema is False:
                raise _ImpossibleError(f"the property {name!r:.40} is required and not possible")
            members.append(self._member(_literal(name), schema))
        optional = [
            partial(self._member, _literal(name), one)
            for name, one in properties.items()
            if name not in required
        ]
        if rest is not False:
            names = sorted({*properties, *required})
            key = self._plain(
                {"type": "string", "pattern": other_texts(names)} if names else {"type": "string"}
            )
            optional.append(partial(self._member, key, rest))
        with contextlib.suppress(_ImpossibleError):
            return self._members(members, self._either(optional))
        return self._members(members, None)

    def _member(self, key: str, schema: Schema) -> str:
        return self._new(f'{key} ws ":" ws {self._value(schema)} ws')

    def _members(self, required: Sequence[str], optional: str | None) -> str:
        """One rule for each set of required members that have come: what may follow."""
        full = (1 << len(required)) - 1
        after = [self._reserved() for _ in range(full + 1)]
        for come in range(full + 1):
            choices = [
                f'"," ws {name} {after[come | 1 << i]}'
                for i, name in enumerate(required)
                if not come >> i & 1
            ]
            if optional is not None:
                choices.append(f'"," ws {optional} {after[come]}')
            self._define(after[come], " | ".join([*choices, '""'] if come == full else choices) or '""')
        first = [f"{name} {after[1 << i]}" for i, name in enumerate(required)]
        if optional is not None:
            first.append(f"{optional} {after[0]}")
        inside = " | ".join(first) or '""'
        return self._new(f'"{{" ws ({inside}) "}}"' if required or not first else f'"{{" ws ({inside})? "}}"')


def _literal(name: str) -> str:
    return json.dumps(json.dumps(name, ensure_ascii=False), ensure_ascii=False)


def _assertions(schema: Schema) -> Schema:
    if isinstance(schema, bool):
        return schema
    return {one: value for one, value in schema.items() if one in ASSERTIONS and one not in ANNOTATIONS}


def _is_plain(schema: Schema) -> bool:
    """Whether nothing inside names properties or refers elsewhere: its order is free as it is."""
    return not any(
        one.get("properties") or one.get("required") or "$ref" in one for one in every_schema(schema)
    )


def _only(words: Mapping[str, Any], known: set[str]) -> None:
    other = sorted(set(words) - known)
    if other:
        raise UnsupportedSchemaError(f"{', '.join(other)} at a place where the order is free")
