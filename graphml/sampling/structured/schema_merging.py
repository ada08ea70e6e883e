"""Two JSON schemas that both hold, as one without `allOf`, where their keywords allow it.

Knows keywords; nothing of grammars.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from graphml.sampling.structured.schema_negation import TYPES, both
from graphml.sampling.structured.schema_words import Schema, UnsupportedSchemaError

MAX_BRANCHES: Final = 256
_LARGER: Final = ("minimum", "minLength", "minItems", "minProperties")
_SMALLER: Final = ("maximum", "maxLength", "maxItems", "maxProperties")


def merged(a: Schema, b: Schema) -> Schema:
    """One schema for what both take; UnsupportedSchemaError where they cannot be put into one."""
    if isinstance(a, bool) or isinstance(b, bool):
        return False if a is False or b is False else b if a is True else a
    made = dict(a)
    for word, value in b.items():
        if word not in made:
            made[word] = value
        elif made[word] != value:
            made[word] = _both(word, made[word], value)
    _check_additional(a, b)
    return made


def types_of(schema: Mapping[str, Any]) -> tuple[str, ...]:
    """The types that a schema names, all where it names none."""
    found = schema.get("type", list(TYPES))
    return tuple(found) if isinstance(found, list) else (found,)


def _both(word: str, a: Any, b: Any) -> Any:
    if word == "type":
        first = [a] if isinstance(a, str) else a
        second = [b] if isinstance(b, str) else b
        kept = [one for one in first if one in second or (one == "integer" and "number" in second)]
        return kept + [one for one in second if one == "integer" and "number" in first and one not in kept]
    if word == "required":
        return [*a, *(one for one in b if one not in a)]
    if word == "properties":
        return {name: both([side[name] for side in (a, b) if name in side]) for name in {**a, **b}}
    if word in ("items", "additionalProperties"):
        return both([a, b])
    if word in _LARGER:
        return max(a, b)
    if word in _SMALLER:
        return min(a, b)
    if word == "allOf":
        return [*a, *b]
    if word == "anyOf":
        if len(a) * len(b) > MAX_BRANCHES:
            raise UnsupportedSchemaError("anyOf: too many branches at one place")
        return [both([one, other]) for one in a for other in b]
    raise UnsupportedSchemaError(f"{word} twice at one place")


def _check_additional(a: Mapping[str, Any], b: Mapping[str, Any]) -> None:
    """What additional properties are depends on the properties beside them."""
    for one, other in ((a, b), (b, a)):
        if one.get("additionalProperties", True) is not True:
            new = set(other.get("properties", {})) - set(one.get("properties", {}))
            if any(other["properties"][name] is not False for name in new) or other.get("patternProperties"):
                raise UnsupportedSchemaError("additionalProperties beside other properties of an allOf")
