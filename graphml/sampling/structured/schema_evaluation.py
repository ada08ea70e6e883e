"""Whether a JSON value is valid under a schema: used for values that a schema lists, at compile time.

Follows JSON Schema 2020-12 and, where they differ, draft 4. Knows values; nothing of grammars or tokens.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from graphml.sampling.structured.schema_words import (
    ANNOTATIONS,
    ASSERTIONS,
    JsonValue,
    Schema,
    UnsupportedSchemaError,
    referred,
)

MAX_STEPS: Final = 20_000


def type_of(value: JsonValue) -> str:
    """The JSON type of a value; "integer" for numbers without a fraction."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, str):
        return "string"
    if isinstance(value, int | float):
        return "integer" if float(value).is_integer() else "number"
    return "object" if isinstance(value, dict) else "array"


def equal(a: JsonValue, b: JsonValue) -> bool:
    """JSON's equality: 1 equals 1.0 and not true; the order of properties does not count."""
    return _canonical(a) == _canonical(b)


def _canonical(value: JsonValue) -> str:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(key)}:{_canonical(value[key])}" for key in sorted(value)) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_canonical, value)) + "]"
    return json.dumps(value)


class Evaluation:
    """Validates values against schemas of one document, in a bounded number of steps."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._steps = 0

    def valid(self, schema: Schema, value: JsonValue) -> bool:
        """Whether the value is valid; UnsupportedSchemaError for keywords that are not evaluated here."""
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise UnsupportedSchemaError("it takes too long to evaluate")
        if isinstance(schema, bool):
            return schema
        kind = type_of(value)
        for word, wanted in schema.items():
            if word in ANNOTATIONS or word not in ASSERTIONS:
                continue
            rule = _RULES.get(word)
            if rule is None:
                raise UnsupportedSchemaError(f"{word!r} is not supported here")
            types, check = rule
            if (kind in types or not types) and not check(self, schema, wanted, value):
                return False
        return True

    def reference(self, _: Mapping[str, Any], wanted: str, value: JsonValue) -> bool:
        """Follow a $ref."""
        return self.valid(referred(self._root, wanted), value)

    def conditional(self, schema: Mapping[str, Any], wanted: Schema, value: JsonValue) -> bool:
        """Evaluate if, then, else."""
        return self.valid(schema.get("then" if self.valid(wanted, value) else "else", True), value)

    def items(self, schema: Mapping[str, Any], wanted: Any, value: list[Any]) -> bool:
        """Evaluate items, of 2020-12 behind prefixItems, or a list of schemas as in draft 4."""
        if isinstance(wanted, list):
            rest = schema.get("additionalItems", True)
            each = [wanted[i] if i < len(wanted) else rest for i in range(len(value))]
        else:
            first = len(schema.get("prefixItems", ()))
            each = [True if i < first else wanted for i in range(len(value))]
        return all(self.valid(one, item) for one, item in zip(each, value, strict=True))

    def additional(self, schema: Mapping[str, Any], wanted: Schema, value: dict[str, Any]) -> bool:
        """Evaluate additionalProperties."""
        named, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
        return all(
            self.valid(wanted, value[key])
            for key in value
            if key not in named and not any(_found(one, key) for one in patterns)
        )

    def dependencies(self, _: Mapping[str, Any], wanted: Mapping[str, Any], value: dict[str, Any]) -> bool:
        """Evaluate dependencies, dependentRequired and dependentSchemas."""
        return all(
            all(other in value for other in needs) if isinstance(needs, list) else self.valid(needs, value)
            for key, needs in wanted.items()
            if key in value
        )

    def contains(self, schema: Mapping[str, Any], wanted: Schema, value: list[Any]) -> bool:
        """Evaluate contains, minContains and maxContains."""
        count = sum(self.valid(wanted, one) for one in value)
        most = schema.get("maxContains")
        return count >= schema.get("minContains", 1) and (most is None or count <= most)


def _found(pattern: str, text: str) -> bool:
    if len(pattern) > 1000 or len(text) > 1000:
        raise UnsupportedSchemaError(f"the pattern {pattern!r:.40} is too long to evaluate")
    try:
        return re.search(pattern, text) is not None
    except (re.error, RecursionError) as error:
        raise UnsupportedSchemaError(f"the pattern {pattern!r:.40} is not understood: {error}") from error


def _is_type(_: Evaluation, schema: Mapping[str, Any], wanted: Any, value: JsonValue) -> bool:
    kind = type_of(value)
    names = wanted if isinstance(wanted, list) else [wanted]
    return kind in names or (kind == "integer" and "number" in names)


def _multiple(_: Evaluation, schema: Mapping[str, Any], wanted: float, value: float) -> bool:
    ratio = value / wanted
    return math.isclose(ratio, round(ratio), rel_tol=1e-12, abs_tol=0.0)


def _unknown_format(_: Evaluation, schema: Mapping[str, Any], wanted: Any, value: JsonValue) -> bool:
    raise UnsupportedSchemaError(f"format {wanted!r:.40} is not supported here")


def _below(a: float, limit: float, schema: Mapping[str, Any], strict: str) -> bool:
    return a < limit if schema.get(strict) is True else a <= limit


_NUMBERS, _TEXT, _LIST, _OBJECT = ("integer", "number"), ("string",), ("array",), ("object",)
_Check = Callable[[Evaluation, Mapping[str, Any], Any, Any], bool]
_RULES: Final[dict[str, tuple[tuple[str, ...], _Check]]] = {
    "type": ((), _is_type),
    "enum": ((), lambda e, s, w, v: any(equal(one, v) for one in w)),
    "const": ((), lambda e, s, w, v: equal(w, v)),
    "format": (_TEXT, _unknown_format),
    "multipleOf": (_NUMBERS, _multiple),
    "maximum": (_NUMBERS, lambda e, s, w, v: _below(v, w, s, "exclusiveMaximum")),
    "minimum": (_NUMBERS, lambda e, s, w, v: _below(-v, -w, s, "exclusiveMinimum")),
    "exclusiveMaximum": (_NUMBERS, lambda e, s, w, v: isinstance(w, bool) or v < w),
    "exclusiveMinimum": (_NUMBERS, lambda e, s, w, v: isinstance(w, bool) or v > w),
    "maxLength": (_TEXT, lambda e, s, w, v: len(v) <= w),
    "minLength": (_TEXT, lambda e, s, w, v: len(v) >= w),
    "pattern": (_TEXT, lambda e, s, w, v: _found(w, v)),
    "items": (_LIST, Evaluation.items),
    "additionalItems": (_LIST, lambda e, s, w, v: True),
    "prefixItems": (_LIST, lambda e, s, w, v: all(map(e.valid, w, v))),
    "maxItems": (_LIST, lambda e, s, w, v: len(v) <= w),
    "minItems": (_LIST, lambda e, s, w, v: len(v) >= w),
    "uniqueItems": (_LIST, lambda e, s, w, v: not w or len({_canonical(one) for one in v}) == len(v)),
    "contains": (_LIST, Evaluation.contains),
    "minContains": (_LIST, lambda e, s, w, v: True),
    "maxContains": (_LIST, lambda e, s, w, v: True),
    "maxProperties": (_OBJECT, lambda e, s, w, v: len(v) <= w),
    "minProperties": (_OBJECT, lambda e, s, w, v: len(v) >= w),
    "required": (_OBJECT, lambda e, s, w, v: all(one in v for one in w)),
    "properties": (_OBJECT, lambda e, s, w, v: all(e.valid(w[one], v[one]) for one in w if one in v)),
    "patternProperties": (
        _OBJECT,
        lambda e, s, w, v: all(e.valid(w[p], v[one]) for p in w for one in v if _found(p, one)),
    ),
    "additionalProperties": (_OBJECT, Evaluation.additional),
    "propertyNames": (_OBJECT, lambda e, s, w, v: all(e.valid(w, one) for one in v)),
    "dependencies": (_OBJECT, Evaluation.dependencies),
    "dependentRequired": (_OBJECT, Evaluation.dependencies),
    "dependentSchemas": (_OBJECT, Evaluation.dependencies),
    "allOf": ((), lambda e, s, w, v: all(e.valid(one, v) for one in w)),
    "anyOf": ((), lambda e, s, w, v: any(e.valid(one, v) for one in w)),
    "oneOf": ((), lambda e, s, w, v: sum(e.valid(one, v) for one in w) == 1),
    "not": ((), lambda e, s, w, v: not e.valid(w, v)),
    "if": ((), Evaluation.conditional),
    "then": ((), lambda e, s, w, v: True),
    "else": ((), lambda e, s, w, v: True),
    "$ref": ((), Evaluation.reference),
}
