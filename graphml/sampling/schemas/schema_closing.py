"""Closed objects: where a schema lists an object's properties and is silent on others, there are no others.

JSON Schema means the opposite. A text that is generated follows the closed schema, as with llama.cpp's and
XGrammar's schemas and with "strict" ones: what it takes, the schema takes, and it takes something where the
schema does (docs/decisions/0094-closed-objects.md has the rule and why that is so). Knows schemas; nothing of
llguidance or tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import combinations
from typing import Any, Final

from graphml.sampling.schemas.schema_words import (
    ANNOTATIONS,
    ASSERTIONS,
    Schema,
    UnsupportedSchemaError,
    every_schema,
    referred,
    with_subschemas,
)

MAX_PARTS: Final = 256
_DEFINITIONS: Final = ("$defs", "definitions")
_ASSERTED: Final = ASSERTIONS - ANNOTATIONS - {"type"}
"""None of these may stand beside a choice whose branches are closed one by one."""
_STATED: Final = frozenset([
    "additionalProperties", "patternProperties", "unevaluatedProperties", "propertyNames", "minProperties",
    "enum", "const",
])  # fmt: skip
"""With one of these a place is as the schema says."""
_IN_PLACE: Final = ("allOf", "anyOf", "oneOf", "not", "if", "then", "else")
_NAMING: Final = ("dependentSchemas", "dependencies", "dependentRequired")
_SHARED: Final = ("uniqueItems", "contains")
"""Beside these, items are more than one schema's matter."""


def closed_schema(schema: Schema) -> Schema:
    """The schema with its silent objects closed; as it came where its references cannot be followed."""
    return _made(schema, True)


def rooted_schema(schema: Schema) -> Schema:
    """The schema with all definitions that are referred to in its own `$defs`; nothing is closed."""
    return _made(schema, False)


def opened_schema(schema: Schema) -> Schema:
    """The schema with `additionalProperties: true` at each object that lists properties and is silent."""
    if not isinstance(schema, dict):
        return schema
    opened = with_subschemas(schema, opened_schema)
    silent = not opened.keys() & {"additionalProperties", "unevaluatedProperties"}
    return {**opened, "additionalProperties": True} if silent and "properties" in opened else opened


def _made(schema: Schema, closes: bool) -> Schema:
    if isinstance(schema, bool):
        return schema
    if any("$dynamicRef" in subschema or "$recursiveRef" in subschema for subschema in every_schema(schema)):
        return schema
    try:
        return _Document(schema).whole(closes)
    except (UnsupportedSchemaError, RecursionError):
        return schema


class _Document:
    """One document: what a reference leads to becomes a definition, one closed and one that is not."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._names: dict[tuple[str, bool], str] = {}
        self._definitions: dict[str, Schema] = {}

    def whole(self, closes: bool) -> Schema:
        placed = self._place(self._root, closes)
        return {**placed, "$defs": self._definitions} if self._definitions else placed

    def _place(self, schema: Schema, closes: bool) -> Schema:
        """The schema of a place in the text that no other schema counts for."""
        if isinstance(schema, bool):
            return schema
        rewritten = {word: value for word, value in schema.items() if word not in _DEFINITIONS}
        if not closes:
            return self._left(rewritten)
        alone = self._alternatives(rewritten)
        if alone:
            return {**rewritten, **alone}
        names = self._names_to_close(rewritten)
        if any(word in rewritten for word in ("$ref", *_IN_PLACE, *_NAMING)):
            rewritten = self._left(rewritten)
        else:
            rewritten = self._with_children(rewritten)
        if names is None:
            return rewritten
        properties = {
            **rewritten.get("properties", {}),
            **{n: True for n in names if n not in rewritten.get("properties", {})},
        }
        return {**rewritten, "properties": properties, "additionalProperties": False}

    def _left(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        """The same schema, its references to definitions of the new document."""
        rewritten = with_subschemas(schema, lambda subschema: self._place(subschema, False))
        if "$ref" in rewritten:
            rewritten["$ref"] = self._definition(rewritten["$ref"], False)
        return rewritten

    def _alternatives(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        """Its only applicator, with closed branches; empty where there is none or more beside it."""
        words = schema.keys() & _ASSERTED
        if words == {"$ref"}:
            return {"$ref": self._definition(schema["$ref"], True)}
        if words == {"anyOf"} or (words == {"allOf"} and len(schema["allOf"]) == 1):
            (word,) = words
            return {word: [self._place(branch, True) for branch in schema[word]]}
        if words == {"oneOf"} and self._disjoint(schema["oneOf"]):
            return {"oneOf": [self._place(branch, True) for branch in schema["oneOf"]]}
        return {}

    def _with_children(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        """Each member's and item's schema closed, but for those of which several schemas may count."""
        patterns = len(schema.get("patternProperties", {})) + ("properties" in schema)
        single = "enum" not in schema and "const" not in schema
        members = single and (patterns < 2 or "patternProperties" not in schema)
        items = single and not any(schema.get(word) for word in _SHARED)
        closed = {"properties", "patternProperties"} if members else set()
        closed |= {"additionalProperties", "unevaluatedProperties"} if single else set()
        closed |= {"items", "prefixItems", "additionalItems", "unevaluatedItems"} if items else set()
        rewritten: dict[str, Any] = {}
        for word, value in schema.items():
            rewritten |= with_subschemas({word: value}, partial(self._place, closes=word in closed))
        return rewritten

    def _definition(self, reference: str, closes: bool) -> str:
        key = (reference, closes)
        if key not in self._names:
            name = self._names[key] = f"d{len(self._names)}"
            self._definitions[name] = True
            self._definitions[name] = self._place(referred(self._root, reference), closes)
        return f"#/$defs/{self._names[key]}"

    def _names_to_close(self, schema: Mapping[str, Any]) -> list[str] | None:
        """All names that a part of the place lists; None where it is open, or says itself what it is."""
        names: dict[str, None] = {}
        wanted: set[str] = set()
        lists = False
        for count, (part, denied) in enumerate(self._parts(schema)):
            if count >= MAX_PARTS or part.keys() & _STATED or (count and "maxProperties" in part):
                return None
            lists = lists or ("properties" in part and not denied)
            names |= dict.fromkeys(part.get("properties", {}))
            for word in _NAMING:
                if not isinstance(part.get(word, {}), dict):
                    return None
                names |= dict.fromkeys(part.get(word, {}))
                for dependency in part.get(word, {}).values():
                    needed = dependency if isinstance(dependency, list) else [dependency]
                    wanted |= {name for name in needed if isinstance(name, str)}
            required = part.get("required")
            wanted |= set(required) if isinstance(required, list) else set()
        return list(names) if lists and wanted <= names.keys() else None

    def _parts(self, schema: Schema) -> Iterator[tuple[Mapping[str, Any], bool]]:
        """The schemas that say something of the same place, each once, and whether by what is not."""
        todo, seen = [(schema, False)], set[int]()
        while todo:
            part, denied = todo.pop(0)
            if not isinstance(part, dict) or id(part) in seen:
                continue
            seen.add(id(part))
            yield part, denied
            if "$ref" in part:
                todo.append((referred(self._root, part["$ref"]), denied))
            for word in _IN_PLACE:
                listed = part.get(word, [])
                listed = listed if isinstance(listed, list) else [listed]
                todo += [(subschema, denied or word in ("not", "if")) for subschema in listed]
            for word in ("dependentSchemas", "dependencies"):
                todo += [
                    (subschema, denied)
                    for subschema in part.get(word, {}).values()
                    if isinstance(subschema, dict)
                ]

    def _disjoint(self, branches: list[Schema]) -> bool:
        """Whether no value is two branches' one, by a type or a required constant of theirs."""
        resolved = [self._resolved(branch) for branch in branches]
        return all(_differ(a, b) for a, b in combinations(resolved, 2))

    def _resolved(self, schema: Schema) -> Mapping[str, Any]:
        for _ in range(8):
            if not isinstance(schema, dict) or schema.keys() & _ASSERTED != {"$ref"}:
                break
            schema = referred(self._root, schema["$ref"])
        return schema if isinstance(schema, dict) else {}


def _differ(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    types = [_types(schema) for schema in (a, b)]
    if all(types) and not types[0] & types[1] and not {"integer", "number"} <= types[0] | types[1]:
        return True
    if types != [{"object"}, {"object"}]:
        return False
    both = [schema.get("required") for schema in (a, b)]
    if not all(isinstance(names, list) for names in both):
        return False
    shared = set(both[0] or ()) & set(both[1] or ())
    return any(_constants(a, name).isdisjoint(_constants(b, name)) for name in shared
               if _constants(a, name) and _constants(b, name))  # fmt: skip


def _types(schema: Mapping[str, Any]) -> set[str]:
    stated = schema.get("type", [])
    return {stated} if isinstance(stated, str) else set(stated)


def _constants(schema: Mapping[str, Any], name: str) -> set[str]:
    """The texts that a property can be, where it lists texts alone."""
    member = schema.get("properties", {}).get(name)
    if not isinstance(member, dict) or not member.keys() & {"enum", "const"}:
        return set()
    values = member.get("enum", [member.get("const")])
    return set(values) if all(isinstance(value, str) for value in values) else set()
