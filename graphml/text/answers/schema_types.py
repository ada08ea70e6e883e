"""What a tool's schema says of a value: its JSON types, the values to choose from, what a reference leads to.

For arguments that are not written as JSON. It takes any mapping: what is no schema says nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final
from urllib.parse import unquote

TYPES: Final[dict[type, str]] = {
    str: "string", bool: "boolean", int: "integer", float: "number", dict: "object", list: "array",
    type(None): "null",
}  # fmt: skip
ALL_TYPES: Final = frozenset(["string", "boolean", "integer", "number", "object", "array", "null"])
MOST_PARTS: Final = 256
MOST_COPIED: Final = 1 << 16
"""So many words are copied where schemas are joined, once for each alternative beside them."""
MOST_BEGINS: Final = 16
"""Names with more separators in them are compared with no other ones."""
_WITHIN: Final = ("items", "additionalProperties")
_LISTS: Final = ("allOf", "anyOf", "oneOf")
_COMBINING: Final = ("$ref", "allOf", "anyOf", "oneOf")


def leaves(schema: Any, root: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The schemas of which a value follows one, without `$ref`, `allOf`, `anyOf` and `oneOf`.

    root: the document with the definitions. What is beside these words, and what `allOf` lists, is joined. A
    reference that leads back to itself says nothing, nor does a schema of more than `MOST_PARTS`, or
    of more than `MOST_COPIED` words where they are joined.
    """
    plain: list[Mapping[str, Any]] = []
    todo: list[tuple[Any, frozenset[str]]] = [(schema, frozenset())]
    copied = 0
    for _ in range(MOST_PARTS):
        if not todo:
            return plain or [{}]
        stated, passed = todo.pop(0)
        stated = stated if isinstance(stated, Mapping) else {}
        rest = {word: value for word, value in stated.items() if word not in _COMBINING}
        reference = str(stated.get("$ref", ""))
        branches = [branch for word in ("anyOf", "oneOf") for branch in _listed(stated.get(word))]
        parts = [part for part in _listed(stated.get("allOf")) if isinstance(part, Mapping)]
        if "$ref" in stated or parts or branches:
            copied += _n_words(stated) * max(1, len(branches))
        if copied > MOST_COPIED or len(plain) + len(todo) + len(branches) > MOST_PARTS:
            return [{}]
        if "$ref" in stated:
            others = {word: value for word, value in stated.items() if word != "$ref"}
            if reference not in passed:
                todo.insert(0, (_joined(_referred(reference, root), others), passed | {reference}))
        elif parts:
            others = {word: value for word, value in stated.items() if word != "allOf"}
            if len(parts) > 1:
                others["allOf"] = parts[1:]
            todo.insert(0, (_joined(parts[0], others), passed))
        elif branches:
            possible = [
                branch if isinstance(branch, Mapping) else {} for branch in branches if branch is not False
            ]
            todo[:0] = [(_joined(rest, branch), passed) for branch in possible]
        else:
            plain.append(rest)
    return [{}]


def _joined(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """What holds where both schemas do, as far as one schema can say it."""
    joined = {**first, **second}
    for word in ("allOf", "required"):
        if word in first and word in second:
            joined[word] = [*_listed(first[word]), *_listed(second[word])]
    if isinstance(first.get("properties"), Mapping) and isinstance(second.get("properties"), Mapping):
        joined["properties"] = {**first["properties"], **second["properties"]}
    if "$ref" in first and "$ref" in second:
        joined["allOf"] = [*_listed(joined.get("allOf")), {"$ref": first["$ref"]}]
    return joined


def _n_words(schema: Mapping[str, Any]) -> int:
    """The words of a schema that joining it may copy."""
    listed = (schema.get(word) for word in ("properties", "required", "allOf"))
    return len(schema) + sum(len(value) for value in listed if isinstance(value, Mapping | list | tuple))


def _referred(reference: str, root: Mapping[str, Any]) -> Mapping[str, Any]:
    place: Any = root
    for part in unquote(reference.removeprefix("#")).split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        place = place.get(name) if isinstance(place, Mapping) else None
    return place if isinstance(place, Mapping) and place is not root else {}


def choices(schema: Mapping[str, Any]) -> list[Any] | None:
    """The values of `enum` or `const`; None where any value may be."""
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return list(values) if isinstance(values, list) and values else None


def json_types(schema: Any, root: Mapping[str, Any]) -> frozenset[str]:
    """The JSON types that a schema allows, as far as it says so; empty where it says nothing."""
    every = [_types(leaf) for leaf in leaves(schema, root)]
    return frozenset().union(*every) if all(every) else frozenset()


def _types(leaf: Mapping[str, Any]) -> frozenset[str]:
    stated = leaf.get("type")
    if isinstance(stated, str):
        return frozenset([stated])
    if isinstance(stated, list):
        return frozenset(kind for kind in stated if isinstance(kind, str))
    return frozenset(TYPES.get(type(value), "") for value in choices(leaf) or ())


def members(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The properties of an object's schema, without those that may not be."""
    properties = schema.get("properties")
    stated = properties.items() if isinstance(properties, Mapping) else ()
    return {name: member for name, member in stated if member is not False}


def properties_of(schema: Any, root: Mapping[str, Any]) -> dict[str, Any]:
    """The properties of all alternatives of an object's schema."""
    listed: dict[str, list[Any]] = {}
    for leaf in leaves(schema, root):
        for name, member in members(leaf).items():
            listed.setdefault(name, []).append(member)
    return {name: {"anyOf": ways} if len(ways) > 1 else ways[0] for name, ways in listed.items()}


def with_names(
    schema: Any, takes: Callable[[str, Collection[str]], bool], nested: bool, place: str = "#"
) -> tuple[Any, dict[str, bool]]:
    """A schema without the properties whose names are not taken; their places, and which are required.

    nested: whether names count in the schemas within, too.
    """
    if not isinstance(schema, Mapping):
        return schema, {}
    left_out: dict[str, bool] = {}
    changed = dict(schema)
    for word in ("properties", *(("$defs", "definitions") if nested else ())):
        parts = schema.get(word)
        if not isinstance(parts, Mapping):
            continue
        needed, kept = required(schema), {}
        for name, member in parts.items():
            if word == "properties" and not takes(name, parts):
                left_out[f"{place}/{word}/{name}"] = name in needed
                continue
            within: dict[str, bool] = {}
            if nested:
                member, within = with_names(member, takes, nested, f"{place}/{word}/{name}")
            kept[name] = member
            left_out |= within
        changed[word] = kept
        if word == "properties" and "required" in schema:
            stated = _listed(schema["required"])
            changed["required"] = [name for name in stated if name in kept or name not in parts]
    for word in (*_WITHIN, *_LISTS) if nested else ():
        is_list = isinstance(schema.get(word), list)
        parts = schema[word] if is_list else [schema.get(word)]
        every = [
            with_names(part, takes, nested, f"{place}/{word}" + (f"/{index}" if is_list else ""))
            for index, part in enumerate(parts)
        ]
        for _, names in every:
            left_out |= names
        if word in schema:
            changed[word] = [part for part, _ in every] if is_list else every[0][0]
    return changed if left_out else schema, left_out


def goes_on(name: str, separator: str, others: Collection[str]) -> bool:
    """Whether a name begins as another one, which the separator ends, or may: they cannot be told apart."""
    begins = name.split(separator)[:-1]
    return len(begins) > MOST_BEGINS or any(
        separator.join(begins[: count + 1]) in others for count in range(len(begins))
    )


def required(schema: Mapping[str, Any]) -> frozenset[str]:
    """The names that an object's schema wants."""
    return frozenset(name for name in _listed(schema.get("required")) if isinstance(name, str))


def definitions(root: Mapping[str, Any]) -> dict[str, Any]:
    """What a part of the document needs beside it for its references."""
    return {word: root[word] for word in ("$defs", "definitions") if word in root}


def _listed(value: Any) -> Iterator[Any]:
    return iter(value if isinstance(value, list | tuple) else ())
