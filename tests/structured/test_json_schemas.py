"""JSON schemas: which texts they take, and what is refused by name."""

from __future__ import annotations

import contextlib
import json
import random
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from graphml.errors import UsageError
from graphml.sampling import json_schema
from graphml.sampling.structured import schema_evaluation
from graphml.sampling.structured.schema_evaluation import Evaluation
from graphml.sampling.structured.type_schemas import schema_of_type
from tests.looped import looped

VALUES: list[Any] = [
    None, True, False, 0, 1, 5, -3, 2.5, "", "a", "ab", "b", "é", "x-1", [], [1], [1, 1], ["a", 1], {}, {"a":
    1}, {"b": 1}, {"a": 1, "b": 2}, {"b": "x", "a": "y"}, {"a": "x", "c": 3}, {"c": 1, "b": 2, "a": 3},
    {"kind": "p"}, {"kind": "p", "x": 1}, {"kind": "q", "y": "s"}, {"kind": "q", "x": 1, "y": "s"}, {"a":
    {"b": 1, "a": 2}},
]  # fmt: skip

SCHEMAS: dict[str, Any] = {
    "types": {"type": ["integer", "null"]},
    "order": {
        "properties": {"a": {"type": "integer"}, "b": {}},
        "required": ["a"],
        "additionalProperties": False,
    },
    "not type": {"not": {"type": ["string", "object"]}},
    "not enum": {"not": {"enum": ["a", "ab", 1, None, True]}},
    "not required": {"type": "object", "not": {"required": ["a", "b"]}},
    "not properties": {"type": "object", "not": {"properties": {"a": {"minimum": 2}}}},
    "not not": {"not": {"not": {"type": "string", "minLength": 1}}},
    "not limits": {"type": ["string", "number"], "not": {"maxLength": 1, "minimum": 1}},
    "if": {
        "if": {"required": ["a"]},
        "then": {"required": ["b"]},
        "else": {"properties": {"b": {"type": "null"}}},
        "type": "object",
    },
    "dependencies": {
        "type": "object",
        "dependencies": {"a": ["b"], "c": {"properties": {"b": {"type": "integer"}}}},
    },
    "dependentRequired": {"dependentRequired": {"b": ["a"]}, "type": "object"},
    "oneOf required": {"type": "object", "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
    "oneOf overlap": {
        "oneOf": [{"type": "number", "minimum": 2}, {"type": "number", "maximum": 5}, {"type": "null"}]
    },
    "oneOf tagged": {
        "oneOf": [
            {"properties": {"kind": {"const": "p"}, "x": {"type": "integer"}}, "required": ["kind", "x"]},
            {"properties": {"kind": {"const": "q"}, "y": {"type": "string"}}, "required": ["kind", "y"]},
        ]
    },
    "oneOf refs": {
        "type": "object",
        "patternProperties": {
            "^[ab]$": {"oneOf": [{"$ref": "#/definitions/n"}, {"$ref": "#/definitions/s"}]}
        },
        "definitions": {"n": {"type": "number"}, "s": {"type": "string"}},
    },
    "names": {"type": "object", "propertyNames": {"pattern": "^[ab]$"}},
    "names enum": {
        "type": "object",
        "propertyNames": {"enum": ["a", "b"]},
        "additionalProperties": {"type": "integer"},
    },
    "enum and not": {"allOf": [{"enum": [{"a": 1}, {"b": 1}, 5]}, {"not": {"required": ["b"]}}]},
    "recursive": {
        "$ref": "#/$defs/n",
        "$defs": {
            "n": {
                "type": "object",
                "properties": {"a": {"anyOf": [{"$ref": "#/$defs/n"}, {"type": "integer"}]}},
            }
        },
    },
    "unknown format": {"type": "string", "format": "css-selector"},
    "a property named format": {
        "type": "object",
        "properties": {"format": {"type": "string"}, "a": {"not": {"type": "string"}}},
    },
    "unique": {"type": "array", "uniqueItems": True, "maxItems": 1},
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_takes_exactly_the_valid_values(name: str) -> None:
    matcher = json_schema(SCHEMAS[name])
    plain = {**SCHEMAS[name]}
    if name == "unknown format":
        del plain["format"]
    wanted = [Evaluation(plain).valid(plain, one) for one in VALUES]
    assert [matcher.accepts(json.dumps(one, ensure_ascii=False)) for one in VALUES] == wanted
    assert len(set(wanted)) == 2


def test_evaluation_of_single_keywords() -> None:
    """What the other tests take for the truth, against values that were judged by hand."""
    for schema, valid, invalid in [
        ({"enum": [1, {"a": [1.0]}]}, [1.0, {"a": [1]}], [True, "1", {"a": [2]}]),
        ({"multipleOf": 0.1}, [0.3, 5, "x"], [0.35]),
        ({"maximum": 3, "exclusiveMaximum": True}, [2.9], [3]),
        ({"exclusiveMinimum": 3}, [4], [3]),
        ({"items": [{"type": "string"}], "additionalItems": False}, [["a"], []], [["a", 1], [1]]),
        ({"prefixItems": [{"type": "string"}], "items": {"type": "integer"}}, [["a", 1]], [["a", "b"]]),
        ({"contains": {"type": "integer"}, "maxContains": 1}, [[1, "a"]], [["a"], [1, 2]]),
        ({"uniqueItems": True}, [[1, True, "1"]], [[1, 1.0], [{"a": 1, "b": 2}, {"b": 2, "a": 1}]]),
        ({"oneOf": [{"type": "integer"}, {"minimum": 2}]}, [1, 2.5, "x"], [3, 1.5]),
        (
            {"if": {"type": "string"}, "then": {"minLength": 1}, "else": {"type": "null"}},
            ["a", None],
            ["", 1],
        ),
        (
            {"properties": {"a": False}, "additionalProperties": {"type": "null"}},
            [{}, {"b": None}],
            [{"a": 1}, {"b": 1}],
        ),
    ]:
        assert all(Evaluation(schema).valid(schema, one) for one in valid), schema
        assert not any(Evaluation(schema).valid(schema, one) for one in invalid), schema


def test_any_order_and_the_schemas_order() -> None:
    schema = {
        "type": "object",
        "properties": {name: {"type": "object", "properties": {"x": {}, "y": {}}} for name in "abcde"},
        "required": ["a", "c", "e"],
        "additionalProperties": False,
    }
    free, ordered = json_schema(schema), json_schema(schema, order="schema")
    names, random_order = list("abcde"), random.Random(3)
    for _ in range(10):
        random_order.shuffle(names)
        text = json.dumps({name: {"y": 1, "x": [2]} for name in names}, indent=1)
        assert free.accepts(text)
        assert not free.accepts(json.dumps({name: {} for name in names if name != "c"}))
        assert not ordered.accepts(text)
    assert ordered.accepts(json.dumps({name: {"x": 1, "y": 2} for name in "abcde"}))
    with pytest.raises(UsageError, match="order"):
        json_schema(schema, order="none")


@looped(
    ("schema", "words"),
    [
        (3, "wanted a dict"),
        ({"type": "text"}, "at #/type: wanted one of"),
        ({"properties": {"a": {"minLength": "3"}}}, "at #/properties/a/minLength: wanted a whole number"),
        ({"anyOf": [True, {"items": 3}]}, "at #/anyOf/1/items: wanted a schema"),
        ({"properties": []}, "at #/properties: wanted an object"),
        ({"enum": 3}, "at #/enum: wanted a list"),
        ({"dependentRequired": {"a": "b"}}, "at #/dependentRequired: wanted an object of lists"),
        ({"a": {1, 2}}, "JSON's types"),
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"type": "array", "contains": {"type": "integer"}}, "contains"),
        ({"unevaluatedProperties": False}, "unevaluatedProperties"),
        ({"not": {"type": "integer"}}, "no integers"),
        ({"not": {"pattern": "a"}}, "'pattern'"),
        ({"$ref": "https://example.com/schema"}, "ref"),
        ({"$ref": "#/$defs/none"}, "none"),
        ({"type": "string", "pattern": "(?=a)b"}, "regex"),
        ({"enum": [1], "not": {"enum": [1]}}, "no value"),
        ({"type": "string", "minLength": 3, "maxLength": 2}, "json_schema"),
    ],
    ids=[str(number) for number in range(18)],
)
def test_a_bad_or_unsupported_schema_is_refused_with_the_reason(schema: Any, words: str) -> None:
    with pytest.raises(UsageError, match=r"^json_schema") as caught:
        json_schema(schema)
    assert words in str(caught.value)


def test_hostile_schemas_are_refused() -> None:
    deep: dict[str, Any] = {}
    for _ in range(300):
        deep = {"not": deep}
    many = {"oneOf": [{"required": [f"p{i}", f"p{i + 1}"]} for i in range(300)]}
    powers: dict[str, Any] = {
        "type": "object",
        "not": {"anyOf": [{"required": [f"a{i}", f"b{i}"]} for i in range(40)]},
    }
    for schema in (deep, many):
        with pytest.raises(UsageError, match="json_schema"):
            json_schema(schema)
    with contextlib.suppress(UsageError):  # either is right; it must end soon
        json_schema(powers)
    with pytest.raises(UsageError, match="json_schema"):
        json_schema({"type": "object", "x-guidance": {"whitespace_pattern": "("}, "not": {"format": "email"}})


def test_ten_required_properties_come_in_any_order() -> None:
    names = [f"p{i}" for i in range(10)]
    found = json_schema({"type": "object", "properties": {one: {} for one in names}, "required": names})
    assert found.accepts(json.dumps(dict.fromkeys(reversed(names), 1)))
    assert not found.accepts(json.dumps(dict.fromkeys(reversed(names[1:]), 1)))


def test_a_long_list_of_values_is_compared_with_the_other_keywords_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted = []
    canonical = schema_evaluation._canonical
    monkeypatch.setattr(schema_evaluation, "_canonical", lambda v: counted.append(v) or canonical(v))
    values = [f"v{i}" for i in range(1000)]
    assert json_schema({"enum": values, "not": {"const": "v3"}, "minLength": 2}).accepts('"v999"')
    assert len(counted) <= 4 * len(values)


def test_an_error_of_an_expression_has_it_and_the_reason() -> None:
    with pytest.raises(UsageError, match=r"\(\?!a\)b.*look-around"):
        json_schema({"type": "string", "pattern": "(?!a)b"})


@dataclass
class Place:
    name: str
    position: tuple[float, float]
    tags: list[str]
    kind: Literal["city", "village"] = "city"
    inside: dict[str, int] | None = None


def test_schemas_of_dataclasses_and_pydantic_models() -> None:
    matcher = json_schema(schema_of_type(Place))
    assert matcher.accepts('{"name": "x", "position": [1, 2.5], "tags": ["a"], "kind": "city"}')
    assert matcher.accepts('{"name": "x", "position": [1, 2], "tags": [], "inside": {"a": 1}}')
    for wrong in ('{"name": "x"}', '{"name": "x", "position": [1], "tags": []}'):
        assert not matcher.accepts(wrong)

    class Model:
        """What a pydantic model has."""

        @staticmethod
        def model_json_schema() -> dict[str, Any]:
            return {"type": "integer"}

    assert json_schema(schema_of_type(Model)).accepts("12")
    for bad in (int, 3, Literal["a"]):
        with pytest.raises(UsageError, match="json_schema"):
            schema_of_type(bad)
