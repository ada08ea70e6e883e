"""JSON schemas: which texts they take, and what is refused by name."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import permutations, product
from typing import Any, Literal

import jsonschema_rs
import pytest

from graphml.errors import UsageError
from graphml.sampling import json_schema
from graphml.sampling.schemas.type_schemas import schema_of_type
from graphml.sampling.structured import Matcher
from graphml.sampling.structured.schema_structure import forceable_part
from tests.looped import looped

VALUES: list[Any] = [
    None, True, False, 0, 1, 5, -3, 2.5, "", "a", "ab", "b", "é", "x-1", [], [1], [1, 1], ["a", 1], {}, {"a":
    1}, {"b": 1}, {"a": 1, "b": 2}, {"a": "y", "b": "x"}, {"a": "x", "c": 3}, {"a": 3, "b": 2, "c": 1},
    {"kind": "p"}, {"kind": "p", "x": 1}, {"kind": "q", "y": "s"}, {"kind": "q", "x": 1, "y": "s"}, {"a":
    {"a": 2, "b": 1}},
]  # fmt: skip

SCHEMAS: dict[str, Any] = {
    "types": {"type": ["integer", "null"]},
    "order": {
        "properties": {"a": {"type": "integer"}, "b": {}},
        "required": ["a"],
        "additionalProperties": False,
    },
    "dependencies": {
        "type": "object",
        "dependencies": {"a": ["b"], "c": {"properties": {"b": {"type": "integer"}}}},
    },
    "dependentRequired": {"dependentRequired": {"b": ["a"]}, "type": "object"},
    "oneOf required": {"type": "object", "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
    "oneOf required of several": {
        "type": "object",
        "oneOf": [{"required": ["a"]}, {"required": ["b", "c"]}, {"required": ["a", "b"]}],
    },
    "oneOf required within another": {
        "type": "object",
        "oneOf": [{"required": ["a"]}, {"required": ["a", "b"]}],
    },
    "oneOf required or no object": {"oneOf": [{"required": ["a"]}, {"type": "object", "required": ["b"]}]},
    "oneOf required of all types": {"oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
    "oneOf numbers that are equal": {"oneOf": [{"enum": [1, "a"]}, {"enum": [2.5, True]}, {"type": "null"}]},
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
        "properties": {"a": {"type": "integer"}, "format": {"type": "string"}},
    },
    "unique": {"type": "array", "uniqueItems": True, "maxItems": 1},
    "not unique": {"type": "array", "uniqueItems": False},
}


def judge(schema: Any) -> Callable[[Any], bool]:
    """Whether values are valid, by another program; formats say nothing there."""
    text = json.dumps(schema)
    older = any(word in text for word in ('"dependencies":', '"items": [', '"additionalItems":'))
    kind = jsonschema_rs.Draft7Validator if older else jsonschema_rs.Draft202012Validator
    return kind(schema).is_valid


def valid(schema: Any, value: Any) -> bool:
    return judge(schema)(value)


def orders(value: Any) -> list[Any]:
    """The value with the members of its objects in each order."""
    if isinstance(value, dict):
        of_each = product(*(orders(one) for one in value.values()))
        return [dict(one) for held in of_each for one in permutations(zip(value, held, strict=True))]
    return [value]


def accepts(matcher: Matcher, value: Any) -> bool:
    return any(matcher.accepts(json.dumps(one, ensure_ascii=False)) for one in orders(value))


@pytest.mark.parametrize("name", SCHEMAS)
def test_takes_exactly_the_valid_values(name: str) -> None:
    matcher = json_schema(SCHEMAS[name])
    wanted = [valid(SCHEMAS[name], one) for one in VALUES]
    assert [accepts(matcher, one) for one in VALUES] == wanted
    assert len(set(wanted)) == 2


def made_branch(random_order: random.Random, levels: int) -> Any:
    """A schema of a few keywords that overlap often."""
    pick = random_order.choice
    made: dict[str, Any] = {}
    if pick((True, False, False)):
        made["type"] = pick(
            ("object", "string", "integer", "number", ["null", "string"], ["object", "array"])
        )
    if pick((True, False)):
        made["required"] = random_order.sample(["a", "b", "kind", "x"], pick((1, 1, 2)))
    if pick((True, False)):
        made["properties"] = {
            name: pick(({"const": 1}, {"enum": ["p", 1.0]}, {"const": "q"}, {"type": "integer"}, False))
            for name in random_order.sample(["a", "b", "kind", "x"], 2)
        }
    if pick((True, False, False)):
        made["additionalProperties"] = False
    if pick((True, False, False, False)):
        made["enum"] = pick(([1, 2.5], [None, "a"], [1.0, {"a": 1}]))
    if levels and pick((True, False, False)):
        made["oneOf"] = [made_branch(random_order, levels - 1) for _ in range(2)]
    return made


def test_a_oneof_takes_no_value_that_is_not_valid() -> None:
    """Of many at random; most are refused, as their branches overlap."""
    random_order, taken, right = random.Random(11), 0, 0
    for _ in range(1500):
        schema = {"oneOf": [made_branch(random_order, 1) for _ in range(random_order.choice((2, 2, 3)))]}
        schema |= random_order.choice(({}, {"type": "object"}))
        try:
            matcher = json_schema(schema)
        except UsageError:
            continue
        taken += 1
        for value in VALUES:
            accepted = accepts(matcher, value)
            right += accepted
            assert valid(schema, value) or not accepted, (schema, value)
    assert taken > 100
    assert right > 1000


def test_properties_come_in_the_schemas_order() -> None:
    schema = {
        "type": "object",
        "properties": {name: {"type": "object", "properties": {"x": {}, "y": {}}} for name in "abc"},
        "required": ["a", "c"],
    }
    matcher = json_schema(schema)
    assert matcher.accepts(json.dumps({name: {"x": 1, "y": 2} for name in "abc"}, indent=1))
    assert not matcher.accepts(json.dumps({name: {} for name in "cba"}))
    assert not matcher.accepts(json.dumps({"a": {}, "b": {}}))


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
        ({"items": {"uniqueItems": True}}, "at #/items/uniqueItems: uniqueItems is not supported"),
        ({"anyOf": [{}, {"contains": {}}]}, "at #/anyOf/1/contains: contains is not supported"),
        ({"unevaluatedProperties": False}, "at #/unevaluatedProperties: unevaluatedProperties is not"),
        ({"properties": {"not": {"not": {}}}}, "at #/properties/not/not: not is not supported"),
        ({"$defs": {"a": {"if": {}, "then": {}}}, "$ref": "#/$defs/a"}, "at #/$defs/a/if: if is not"),
        ({"propertyNames": {"pattern": "a"}}, "at #/propertyNames: propertyNames is not supported"),
        (
            {"items": {"oneOf": [{"minimum": 2}, {"maximum": 5}]}},
            "at #/items/oneOf: branches 0 and 1 may both",
        ),
        ({"$ref": "https://example.com/schema"}, "at #/$ref: $ref 'https://example.com/schema' leads out"),
        ({"$ref": "#/$defs/none"}, "none"),
        ({"items": {"pattern": "(?=a)b"}}, "at #/items/pattern: regex"),
        ({"patternProperties": {"(?=a)b": {}}}, "at #/patternProperties/(?=a)b: regex"),
        ({"oneOf": [True, True]}, "no value"),
        ({"type": "string", "minLength": 3, "maxLength": 2}, "json_schema"),
    ],
    ids=[str(number) for number in range(21)],
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
    for schema in (deep, many):
        with pytest.raises(UsageError, match="json_schema"):
            json_schema(schema)
    with pytest.raises(UsageError, match="json_schema"):
        json_schema({"type": "object", "x-guidance": {"whitespace_pattern": "("}, "not": {"format": "email"}})


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"multipleOf": 999983}, "#/multipleOf"),
        (
            {"properties": {"a": {"allOf": [{"multipleOf": 97}, {"multipleOf": 0.991}]}}},
            "#/properties/a/allOf/",
        ),
        ({"anyOf": [{"type": "integer", "multipleOf": p} for p in (997, 991, 983, 977)]}, "#/anyOf/"),
    ],
)
def test_multiples_that_take_the_memory_of_all_are_refused(schema: Any, place: str) -> None:
    """As compiled before they ended the process; of a tool the rest is still forced."""
    with pytest.raises(UsageError, match=f"^json_schema, at {place}.*above 10,000"):
        json_schema(schema)
    part, left_out = forceable_part(json.dumps({**schema, "title": "x"}))
    assert "multipleOf" not in json.dumps(part)
    assert left_out[0].startswith(place)


def test_multiples_of_usual_numbers_are_taken() -> None:
    usual = [{"type": "integer", "multipleOf": step} for step in (5, 10, 15, 60, 1000)]
    assert json_schema({"anyOf": usual}).accepts("25")
    assert not json_schema({"type": "integer", "multipleOf": 9973}).accepts("9974")
    assert json_schema({"type": "number", "multipleOf": 0.01}).accepts("1.25")


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
