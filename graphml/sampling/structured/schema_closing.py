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

from graphml.sampling.structured.schema_words import (
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
    made = with_subschemas(schema, opened_schema)
    silent = not made.keys() & {"additionalProperties", "unevaluatedProperties"}
    return {**made, "additionalProperties": True} if silent and "properties" in made else made


def _made(schema: Schema, closes: bool) -> Schema:
    if isinstance(schema, bool):
        return schema
    if any("$dynamicRef" in one or "$recursiveRef" in one for one in every_schema(schema)):
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
        made = self._place(self._root, closes)
        return {**made, "$defs": self._definitions} if self._definitions else made

    def _place(self, schema: Schema, closes: bool) -> Schema:
        """The schema of a place in the text that no other schema counts for."""
        if isinstance(schema, bool):
            return schema
        made = {word: one for word, one in schema.items() if word not in _DEFINITIONS}
        if not closes:
            return self._left(made)
        alone = self._alternatives(made)
        if alone:
            return {**made, **alone}
        names = self._names_to_close(made)
        if any(word in made for word in ("$ref", *_IN_PLACE, *_NAMING)):
            made = self._left(made)
        else:
            made = self._with_children(made)
        if names is None:
            return made
        properties = {
            **made.get("properties", {}),
            **{n: True for n in names if n not in made.get("properties", {})},
        }
        return {**made, "properties": properties, "additionalProperties": False}

    def _left(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        """The same schema, its references to definitions of the new document."""
        made = with_subschemas(schema, lambda one: self._place(one, False))
        if "$ref" in made:
            made["$ref"] = self._definition(made["$ref"], False)
        return made

    def _alternatives(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        """Its only applicator, with closed branches; empty where there is none or more beside it."""
        words = schema.keys() & _ASSERTED
        if words == {"$ref"}:
            return {"$ref": self._definition(schema["$ref"], True)}
        if words == {"anyOf"} or (words == {"allOf"} and len(schema["allOf"]) == 1):
            (word,) = words
            return {word: [self._place(one, True) for one in schema[word]]}
        if words == {"oneOf"} and self._disjoint(schema["oneOf"]):
            return {"oneOf": [self._place(one, True) for one in schema["oneOf"]]}
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
        made: dict[str, Any] = {}
        for word, value in schema.items():
            made |= with_subschemas({word: value}, partial(self._place, closes=word in closed))
        return made

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
                for one in part.get(word, {}).values():
                    needed = one if isinstance(one, list) else [one]
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
                todo += [(one, denied or word in ("not", "if")) for one in listed]
            for word in ("dependentSchemas", "dependencies"):
                todo += [(one, denied) for one in part.get(word, {}).values() if isinstance(one, dict)]

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
    types = [_types(one) for one in (a, b)]
    if all(types) and not types[0] & types[1] and not {"integer", "number"} <= types[0] | types[1]:
        return True
    if types != [{"object"}, {"object"}]:
        return False
    both = [one.get("required") for one in (a, b)]
    if not all(isinstance(one, list) for one in both):
        return False
    shared = set(both[0] or ()) & set(both[1] or ())
    return any(_constants(a, name).isdisjoint(_constants(b, name)) for name in shared
               if _constants(a, name) and _constants(b, name))  # fmt: skip


def _types(schema: Mapping[str, Any]) -> set[str]:
    stated = schema.get("type", [])
    return {stated} if isinstance(stated, str) else set(stated)


def _constants(schema: Mapping[str, Any], name: str) -> set[str]:
    """The texts that a property can be, where it lists texts alone."""
    one = schema.get("properties", {}).get(name)
    if not isinstance(one, dict) or not one.keys() & {"enum", "const"}:
        return set()
    values = one.get("enum", [one.get("const")])
    return set(values) if all(isinstance(value, str) for value in values) else set()
