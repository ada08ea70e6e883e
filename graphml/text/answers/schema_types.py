"""What a tool's schema says of a value: its JSON types, the values to choose from, what a reference leads to.

For arguments that are not written as JSON. It takes any mapping: what is no schema says nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import unquote

from graphml.text.answers.grammar_rules import ANYTHING

TYPES: Final[dict[type, str]] = {
    str: "string", bool: "boolean", int: "integer", float: "number", dict: "object", list: "array",
    type(None): "null",
}  # fmt: skip
ALL_TYPES: Final = frozenset(["string", "boolean", "integer", "number", "object", "array", "null"])
_DEEPEST: Final = 8
MOST_BOUND: Final = 10_000
"""Longer texts are as if no length were said."""


def followed(schema: Any, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """A schema, with what its reference leads to; root: the document with its definitions."""
    for _ in range(_DEEPEST):
        if not isinstance(schema, Mapping):
            return {}
        if "$ref" not in schema:
            return schema
        target = _referred(schema["$ref"], root)
        schema = {**target, **{word: stated for word, stated in schema.items() if word != "$ref"}}
    return {}


def _referred(reference: Any, root: Mapping[str, Any]) -> Mapping[str, Any]:
    place: Any = root
    for part in unquote(str(reference).removeprefix("#")).split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        place = place.get(name) if isinstance(place, Mapping) else None
    return place if isinstance(place, Mapping) and place is not root else {}


def branches(schema: Mapping[str, Any], root: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The schemas of `anyOf` and `oneOf`, of which a value follows one."""
    return [
        followed(branch, root)
        for word in ("anyOf", "oneOf")
        for branch in (schema.get(word) or ())
        if isinstance(schema.get(word), list)
    ]


def choices(schema: Mapping[str, Any]) -> list[Any] | None:
    """The values of `enum` or `const`; None where any value may be."""
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return list(values) if isinstance(values, list) and values else None


def json_types(schema: Any, root: Mapping[str, Any], level: int = 0) -> frozenset[str]:
    """The JSON types that a schema allows, as far as it says so; empty where it says nothing."""
    schema = followed(schema, root)
    if not schema or level > _DEEPEST:
        return frozenset()
    stated = schema.get("type")
    if isinstance(stated, str):
        return frozenset([stated])
    if isinstance(stated, list):
        return frozenset(kind for kind in stated if isinstance(kind, str))
    values = choices(schema)
    if values is not None:
        return frozenset(TYPES.get(type(value), "") for value in values)
    possible = frozenset[str]()
    alternatives = [json_types(branch, root, level + 1) for branch in branches(schema, root)]
    if alternatives and all(alternatives):
        possible = frozenset().union(*alternatives)
    for part in _listed(schema.get("allOf")):
        kinds = json_types(part, root, level + 1)
        possible = possible & kinds if possible and kinds else possible or kinds
    return possible


def members(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The properties of an object's schema, without those that may not be."""
    properties = schema.get("properties")
    stated = properties.items() if isinstance(properties, Mapping) else ()
    return {name: member for name, member in stated if member is not False}


def required(schema: Mapping[str, Any]) -> frozenset[str]:
    """The names that an object's schema wants."""
    return frozenset(name for name in _listed(schema.get("required")) if isinstance(name, str))


def definitions(root: Mapping[str, Any]) -> dict[str, Any]:
    """What a part of the document needs beside it for its references."""
    return {word: root[word] for word in ("$defs", "definitions") if word in root}


def text_bounds(schema: Mapping[str, Any]) -> str:
    """The expression of a text of the length that a schema says."""
    low, high = (schema.get(word) for word in ("minLength", "maxLength"))
    low, high = (
        bound if isinstance(bound, int) and 0 <= bound <= MOST_BOUND else None for bound in (low, high)
    )
    return ANYTHING if low is high is None else rf"/(.|\n){{{low or 0},{'' if high is None else high}}}/"


def _listed(value: Any) -> Iterator[Any]:
    return iter(value if isinstance(value, list | tuple) else ())
