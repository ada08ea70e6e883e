"""The properties of a schema's object by name, wherever its root says them.

For arguments that are written one by one. Knows schemas; nothing of formats or tokens. It takes any mapping:
what is no schema says nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from graphml.sampling.schemas.schema_words import ANNOTATIONS, Schema, UnsupportedSchemaError, referred

MAX_PARTS: Final = 256
_DEEPEST: Final = 8


def schema_of_members(root: Mapping[str, Any]) -> dict[str, Any]:
    """A schema with the `properties`, `required`, `additionalProperties` and `$defs` that the root says.

    References at the root and of a property itself are followed; what the parts of `allOf` and the branches
    of `anyOf` and `oneOf` list is listed. Required is what holds for every branch.
    """
    properties: dict[str, Any] = {}
    required: dict[str, None] = {}
    rest: Schema | None = None
    for part, certain in _parts(root):
        for name, member in _mapping(part, "properties").items():
            if properties.get(name, True) is True:
                properties[name] = _followed(root, member)
        if certain:
            required |= dict.fromkeys(
                required_name for required_name in _list(part, "required") if isinstance(required_name, str)
            )
        rest = part.get("additionalProperties") if rest is None else rest
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {name: member for name, member in properties.items() if member is not False},
        "required": [name for name in required if name in properties],
    }
    if rest is not None:
        schema["additionalProperties"] = rest
    return {**schema, **{word: root[word] for word in ("$defs", "definitions") if word in root}}


def _parts(root: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], bool]]:
    """The schemas that say something of the object, and whether each must hold."""
    todo: list[tuple[Any, bool]] = [(root, True)]
    for _ in range(MAX_PARTS):
        if not todo:
            return
        part, certain = todo.pop(0)
        if not isinstance(part, Mapping):
            continue
        yield part, certain
        if "$ref" in part:
            todo.append((_referred(root, part["$ref"]), certain))
        todo += [(subschema, certain) for subschema in _list(part, "allOf")]
        for word in ("anyOf", "oneOf"):
            branches = _list(part, word)
            todo += [(branch, certain and len(branches) == 1) for branch in branches]


def _mapping(schema: Mapping[str, Any], word: str) -> Mapping[str, Any]:
    mapping = schema.get(word)
    return mapping if isinstance(mapping, Mapping) else {}


def _list(schema: Mapping[str, Any], word: str) -> list[Any]:
    listed = schema.get(word)
    return listed if isinstance(listed, list) else []


def _followed(root: Mapping[str, Any], schema: Schema) -> Schema:
    """A property's schema, in place of a reference what it leads to."""
    for _ in range(_DEEPEST):
        if not isinstance(schema, Mapping) or set(schema) - ANNOTATIONS != {"$ref"}:
            break
        target = _referred(root, schema["$ref"])
        if not isinstance(target, Mapping):
            return target
        schema = {**target, **{word: value for word, value in schema.items() if word != "$ref"}}
    return schema


def _referred(root: Mapping[str, Any], reference: Any) -> Schema:
    try:
        return referred(root, reference)
    except UnsupportedSchemaError:
        return {}
