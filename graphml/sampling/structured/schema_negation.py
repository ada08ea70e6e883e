"""The negation of a JSON schema as a schema without `not`, where it has one.

Each assertion applies to values of one type, so its negation is a schema of that type; that of several is a
choice among them. Knows keywords; what has no such form is UnsupportedSchemaError.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from graphml.sampling.structured.schema_evaluation import type_of
from graphml.sampling.structured.schema_words import (
    ANNOTATIONS,
    ASSERTIONS,
    JsonValue,
    Schema,
    UnsupportedSchemaError,
    referred,
)

TYPES: Final = ("null", "boolean", "object", "array", "number", "string")
MAX_LEVELS: Final = 40


class Negation:
    """Negates schemas of one document. `rewritten` makes an inner schema free of `not` as well."""

    def __init__(self, root: Schema, rewritten: Callable[[Schema], Schema]) -> None:
        self._root, self._rewritten = root, rewritten
        self._level = 0

    def of(self, schema: Schema) -> Schema:
        """A schema for exactly the values that this one refuses."""
        if isinstance(schema, bool):
            return not schema
        self._level += 1
        try:
            if self._level > MAX_LEVELS:
                raise UnsupportedSchemaError("not: its schema refers to itself, or is nested too deeply")
            words = [one for one in schema if one in ASSERTIONS and one not in ANNOTATIONS]
            return either([self._word(schema, word) for word in words])
        finally:
            self._level -= 1

    def _word(self, schema: Mapping[str, Any], word: str) -> Schema:  # noqa: C901, a table of forms
        wanted = schema[word]
        if word in _SHIFTED:
            kind, other, by = _SHIFTED[word]
            if wanted + by < 0:
                return False
            return {"type": kind, other: wanted + by}
        if word == "type":
            return _other_types(wanted if isinstance(wanted, list) else [wanted])
        if word in ("enum", "const"):
            return _none_of(wanted if word == "enum" else [wanted])
        if word in ("maximum", "minimum"):
            strict = schema.get("exclusive" + word.capitalize()) is True
            other = "minimum" if word == "maximum" else "maximum"
            return {"type": "number", other if strict else "exclusive" + other.capitalize(): wanted}
        if word in ("exclusiveMaximum", "exclusiveMinimum"):
            if isinstance(wanted, bool):
                return False  # of draft 4: a part of maximum, minimum
            return {"type": "number", "minimum" if word == "exclusiveMaximum" else "maximum": wanted}
        if word == "required":
            return either([{"type": "object", "properties": {name: False}} for name in wanted])
        if word == "properties":
            return either([_with_property(name, self.of(one)) for name, one in wanted.items()])
        if word == "propertyNames":
            return either([{"type": "object", "required": [name]} for name in self._refused_names(wanted)])
        if word in ("allOf", "anyOf"):
            each = [self.of(one) for one in wanted]
            return either(each) if word == "allOf" else both(each)
        if word == "not":
            return self._rewritten(wanted)
        if word == "$ref":
            return self.of(referred(self._root, wanted))
        raise UnsupportedSchemaError(f"not: {word!r} inside it is not supported")

    def _refused_names(self, names: Schema) -> Sequence[str]:
        """The names that a schema of names refuses, where they can be listed."""
        refused = names.get("not") if isinstance(names, dict) and set(names) == {"not"} else None
        values = refused.get("enum", [refused["const"]] if "const" in refused else None) if refused else None
        if not isinstance(refused, dict) or len(refused) != 1 or values is None:
            raise UnsupportedSchemaError("not: 'propertyNames' inside it is not supported")
        return [one for one in values if isinstance(one, str)]


_SHIFTED: Final = {
    "minLength": ("string", "maxLength", -1),
    "maxLength": ("string", "minLength", 1),
    "minItems": ("array", "maxItems", -1),
    "maxItems": ("array", "minItems", 1),
    "minProperties": ("object", "maxProperties", -1),
    "maxProperties": ("object", "minProperties", 1),
}


def either(schemas: Sequence[Schema]) -> Schema:
    """A schema for what any of these takes."""
    kept = [one for one in schemas if one is not False]
    if any(one is True for one in kept):
        return True
    return False if not kept else kept[0] if len(kept) == 1 else {"anyOf": kept}


def both(schemas: Sequence[Schema]) -> Schema:
    """A schema for what all of these take."""
    kept = [one for one in schemas if one is not True]
    if any(one is False for one in kept):
        return False
    return True if not kept else kept[0] if len(kept) == 1 else {"allOf": kept}


def _with_property(name: str, schema: Schema) -> Schema:
    if schema is False:
        return False
    return {"type": "object", "properties": {name: schema}, "required": [name]}


def _other_types(names: Sequence[str]) -> Schema:
    if "integer" in names and "number" not in names:
        raise UnsupportedSchemaError("not: numbers that are no integers are not supported")
    kept = [one for one in TYPES if one not in names]
    return {"type": kept} if kept else False


def _none_of(values: Sequence[JsonValue]) -> Schema:
    """Every value but these."""
    kinds = {type_of(one) for one in values}
    untouched = [one for one in TYPES if one not in kinds and not (one == "number" and "integer" in kinds)]
    parts: list[Schema] = [{"type": untouched}] if untouched else []
    texts = [one for one in values if isinstance(one, str)]
    if texts:
        parts.append({"type": "string", "pattern": other_texts(texts)})
    numbers = sorted({one for one in values if isinstance(one, int | float) and not isinstance(one, bool)})
    if numbers:
        parts.append({"type": "number", "exclusiveMaximum": numbers[0]})
        for low, high in pairwise(numbers):
            parts.append({"type": "number", "exclusiveMinimum": low, "exclusiveMaximum": high})
        parts.append({"type": "number", "exclusiveMinimum": numbers[-1]})
    flags = {one for one in values if isinstance(one, bool)}
    if len(flags) == 1:
        parts.append({"const": not flags.pop()})
    for one in values:
        if isinstance(one, dict | list):
            if one or len([other for other in values if type(other) is type(one)]) > 1:
                raise UnsupportedSchemaError("not: a constant object or array inside it is not supported")
            parts.append(
                {"type": "object", "minProperties": 1}
                if isinstance(one, dict)
                else {"type": "array", "minItems": 1}
            )
    return either(parts)


def other_texts(texts: Sequence[str]) -> str:
    """A regular expression, without look-around, for every text but these."""
    if sum(map(len, texts)) > 5000:
        raise UnsupportedSchemaError("not: too many texts are listed inside it")
    return f"^(?:{_other(sorted(set(texts)), 0)})$"


def _other(texts: Sequence[str], depth: int) -> str:
    """What may follow a common beginning of `depth` characters so that no text of these comes out."""
    if depth > 100:
        raise UnsupportedSchemaError("not: a text that is listed inside it is too long")
    by_letter: dict[str, list[str]] = {}
    for text in texts:
        if len(text) > depth:
            by_letter.setdefault(text[depth], []).append(text)
    choices = [] if any(len(text) == depth for text in texts) else [""]
    letters = "".join(re.escape(one) if one != "^" else r"\^" for one in by_letter)
    choices.append(f"[^{letters}](?s:.)*" if letters else "(?s:.)+")
    choices += [f"{re.escape(letter)}(?:{_other(rest, depth + 1)})" for letter, rest in by_letter.items()]
    return "|".join(choices)
