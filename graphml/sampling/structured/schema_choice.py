"""`oneOf` as a choice among schemas that exclude each other.

Two branches that cannot both hold stay as they are; of others, each is joined with the negation of the rest.
All is done for each type of values apart, as most branches differ by type. Knows schemas alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from graphml.sampling.structured.schema_evaluation import Evaluation, type_of
from graphml.sampling.structured.schema_negation import TYPES, both, either
from graphml.sampling.structured.schema_words import (
    ANNOTATIONS,
    ASSERTIONS,
    Schema,
    UnsupportedSchemaError,
    referred,
)

Change = Callable[[Schema], Schema]
MAX_BRANCHES: Final = 200
MAX_LEVELS: Final = 6

_OF_TYPE: Final = {
    "number": {"multipleOf", "maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum"},
    "string": {"maxLength", "minLength", "pattern", "format"},
    "array": {
        "items", "prefixItems", "additionalItems", "maxItems", "minItems", "uniqueItems", "contains",
        "minContains", "maxContains", "unevaluatedItems",
    },
    "object": {
        "maxProperties", "minProperties", "required", "properties", "patternProperties",
        "additionalProperties", "propertyNames", "dependencies", "dependentRequired", "dependentSchemas",
        "unevaluatedProperties",
    },
}  # fmt: skip


def exactly_one(root: Schema, branches: Sequence[Schema], rewritten: Change, negated: Change) -> Schema:
    """A schema without `oneOf` for the values that exactly one branch takes."""
    if len(branches) > MAX_BRANCHES:
        raise UnsupportedSchemaError(f"oneOf: at most {MAX_BRANCHES} branches are supported")
    alternatives: dict[tuple[int, tuple[int, ...]], list[str]] = {}
    for kind in TYPES:
        possible = [i for i, one in enumerate(branches) if _may_hold(root, one, kind)]
        always = [i for i in possible if _always_holds(root, branches[i], kind)]
        if len(always) > 1:
            continue
        for i in possible:
            others = [
                j
                for j in possible
                if j != i and not _disjoint(root, branches[i], branches[j], kind, MAX_LEVELS)
            ]
            if not set(others) & set(always):
                alternatives.setdefault((i, tuple(others)), []).append(kind)
    found = []
    for (i, excluded), kinds in alternatives.items():
        typed: Schema = True if len(kinds) == len(TYPES) else {"type": kinds if len(kinds) > 1 else kinds[0]}
        parts = [typed, rewritten(branches[i]), *(negated(branches[j]) for j in excluded)]
        found.append(both(parts))
    return either(found)


def _resolved(root: Schema, schema: Schema) -> list[Mapping[str, Any]] | None:
    """The schemas that all hold where this one does, references followed; None where it never holds."""
    found: list[Mapping[str, Any]] = []
    todo, seen = [schema], 0
    while todo:
        one = todo.pop()
        seen += 1
        if one is False:
            return None
        if seen > 200:
            raise UnsupportedSchemaError("oneOf: its branches refer to too many schemas")
        if isinstance(one, bool):
            continue
        found.append(one)
        todo += one.get("allOf", [])
        if "$ref" in one:
            todo.append(referred(root, one["$ref"]))
    return found


def _may_hold(root: Schema, schema: Schema, kind: str) -> bool:
    parts = _resolved(root, schema)
    if parts is None:
        return False
    for one in parts:
        names = one.get("type", kind)
        names = names if isinstance(names, list) else [names]
        if kind not in names and not (kind == "number" and "integer" in names):
            return False
        values = one.get("enum", [one["const"]] if "const" in one else None)
        if values is not None and kind not in {type_of(v).replace("integer", "number") for v in values}:
            return False
    return True


def _always_holds(root: Schema, schema: Schema, kind: str) -> bool:
    """Whether it takes every value of a type, as far as its keywords show."""
    for one in _resolved(root, schema) or ():
        names = one.get("type", kind)
        if kind not in (names if isinstance(names, list) else [names]):
            return False
        said = {word for word in one if word in ASSERTIONS and word not in ANNOTATIONS}
        other = set().union(*(words for of, words in _OF_TYPE.items() if of != kind))
        if said - other - {"type", "allOf", "$ref"}:
            return False
    return True


def _disjoint(root: Schema, a: Schema, b: Schema, kind: str, levels: int) -> bool:
    """Whether no value of a type is valid under both, as far as can be shown."""
    if not levels:
        return False
    parts_a, parts_b = _resolved(root, a), _resolved(root, b)
    if parts_a is None or parts_b is None:
        return True
    if _values_exclude(root, parts_a, b) or _values_exclude(root, parts_b, a):
        return True
    if kind != "object":
        return False
    return _properties_exclude(root, parts_a, parts_b, levels) or _properties_exclude(
        root, parts_b, parts_a, levels
    )


def _values_exclude(root: Schema, parts: Sequence[Mapping[str, Any]], other: Schema) -> bool:
    """Whether one of the parts lists its values and the other schema takes none of them."""
    for one in parts:
        values = one.get("enum", [one["const"]] if "const" in one else None)
        if values is None:
            continue
        try:
            if not any(Evaluation(root).valid(other, value) for value in values):
                return True
        except UnsupportedSchemaError:
            continue
    return False


def _properties_exclude(
    root: Schema, parts: Sequence[Mapping[str, Any]], others: Sequence[Mapping[str, Any]], levels: int
) -> bool:
    """Whether a property that the first require excludes all objects of the others."""
    required = {name for one in parts for name in one.get("required", []) if isinstance(name, str)}
    for name in required:
        schema = both([one["properties"][name] for one in parts if name in one.get("properties", {})])
        for one in others:
            named = one.get("properties", {})
            if name not in named:
                if one.get("additionalProperties") is False and not one.get("patternProperties"):
                    return True
                continue
            if all(
                not _may_hold(root, schema, kind)
                or not _may_hold(root, named[name], kind)
                or _disjoint(root, schema, named[name], kind, levels - 1)
                for kind in TYPES
            ):
                return True
    return False
