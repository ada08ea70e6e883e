"""Objects that list properties and are silent on others have no others, where texts are generated."""

from __future__ import annotations

import json
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphml.errors import UsageError
from graphml.sampling import SamplingParams, json_schema
from graphml.sampling.schemas.schema_closing import closed_schema, opened_schema, rooted_schema
from graphml.sampling.structured.opened_tokens import opened_tokens
from graphml.sampling.structured.schema_structure import generated_structure
from tests.structured.test_json_schemas import SCHEMAS, VALUES, accepts, judge, valid

A: dict[str, Any] = {"properties": {"a": {"type": "integer"}}}
B: dict[str, Any] = {"properties": {"b": {"type": "integer"}}}
TAGGED: list[Any] = [
    {"type": "object", "properties": {"kind": {"const": kind}, name: {}}, "required": ["kind"]}
    for kind, name in (("p", "a"), ("q", "b"))
]
CLOSED: dict[str, tuple[Any, list[Any], list[Any]]] = {  # schema, what is taken, what is not
    "silent": (A, [{}, {"a": 1}], [{"a": 1, "c": 1}]),
    "inside": ({"properties": {"x": {"items": A}}}, [{"x": [{"a": 1}]}], [{"x": [{"c": 1}]}]),
    "stated": ({**A, "additionalProperties": True}, [{"a": 1, "c": 1}], []),
    "inside what is stated": (
        {"properties": {"x": A}, "additionalProperties": True},
        [{"x": {"a": 1}, "y": 1}],
        [{"x": {"c": 1}}],
    ),
    "values": ({"type": "object", "additionalProperties": A}, [{"k": {"a": 1}}], [{"k": {"c": 1}}]),
    "no properties": ({"type": "object"}, [{"c": 1}], []),
    "defined": (
        {"properties": {"x": {"$ref": "#/$defs/A"}}, "$defs": {"A": A}},
        [{"x": {"a": 1}}],
        [{"x": {"c": 1}}, {"c": 1}],
    ),
    "recursive": (
        {"properties": {"a": {"type": "integer"}, "x": {"$ref": "#"}}},
        [{"x": {"x": {"a": 1}}}],
        [{"x": {"x": {"c": 1}}}],
    ),
    "anyOf": ({"anyOf": [A, B]}, [{"a": 1}, {"b": 1}], [{"a": 1, "b": 1}, {"c": 1}]),
    "tagged": (
        {"oneOf": TAGGED},
        [{"kind": "p", "a": 1}],
        [{"kind": "p", "b": 1}, {"kind": "p", "c": 1}],
    ),
    "allOf": ({"allOf": [A, B]}, [{"a": 1, "b": 1}], [{"a": 1, "c": 1}]),
    "allOf of one": ({"allOf": [{"$ref": "#/$defs/A"}], "$defs": {"A": A}}, [{"a": 1}], [{"c": 1}]),
    "beside a reference": ({**B, "$ref": "#/$defs/A", "$defs": {"A": A}}, [{"b": 1, "a": 1}], [{"c": 1}]),
    "beside anyOf": ({**A, "anyOf": [B, {"required": ["a"]}]}, [{"a": 1, "b": 1}], [{"a": 1, "c": 1}]),
    "one name in two parts": (
        {"allOf": [{"properties": {"x": A}}, {"properties": {"x": {**B, "required": ["b"]}}}]},
        [{"x": {"a": 1, "b": 1}}],
        [{"x": {"b": 1}, "y": 1}],
    ),
    "required, not listed": ({**A, "required": ["c"]}, [{"c": 1}], []),
    "patterns": ({**A, "patternProperties": {"^x": {}}}, [{"a": 1, "x": 1}], []),
}  # fmt: skip


def taken(schema: Any, value: Any) -> bool:
    """By the structure that generates."""
    text = json.dumps(value).encode()
    progress = generated_structure(schema, opened_tokens(None)).begin()
    for token in text:
        if not progress.allows(token):
            return False
        progress.accept(token)
    return progress.may_end()


@pytest.mark.parametrize("name", CLOSED)
def test_silent_objects_are_closed(name: str) -> None:
    schema, within, outside = CLOSED[name]
    for value in within:
        assert taken(schema, value), value
    for value in outside:
        assert not taken(schema, value), value
    for value in outside:
        if valid(schema, value):  # what is checked keeps the schema's own meaning
            assert accepts(json_schema(schema), value)


def test_objects_are_open_where_that_is_asked_for() -> None:
    params = SamplingParams(json_schema={"properties": {"x": A}}, open_objects=True)
    schema = json.loads(params.json_schema)
    assert taken(schema, {"x": {"a": 1, "c": 1}, "c": 1})
    assert not taken(schema, {"x": {"a": "no"}})
    assert opened_schema({**A, "additionalProperties": False}) == {**A, "additionalProperties": False}
    broken = SamplingParams(json_schema="{", open_objects=True)
    assert broken.json_schema == "{"
    with pytest.raises(UsageError, match="open_objects: wanted True or False"):
        SamplingParams(open_objects=1)  # type: ignore[arg-type]


UNLISTED = {"a": 1, "c": {"d": 1}}
LEFT: list[Any] = [  # each takes the object above, which has more than is listed
    {**A, "minProperties": 2}, {**A, "const": UNLISTED}, {**A, "enum": [UNLISTED]},
    {**A, "patternProperties": {"^c": {}}, "required": ["c"]}, {**A, "propertyNames": {"maxLength": 1}},
    {"allOf": [A, {"minProperties": 2}]}, {"allOf": [A, {"additionalProperties": {"required": ["d"]}}]},
    {**A, "dependentRequired": {"a": ["c"]}, "required": ["a"]},
    {**A, "dependentSchemas": {"a": {"required": ["c"]}}, "required": ["a"]},
    {**A, "if": {"required": ["a"]}, "then": {"required": ["c"]}}, {**A, "not": {"maxProperties": 1}},
    {**A, "dependencies": {"a": ["c"]}},
    {"properties": {"c": B, "a": {}}, "patternProperties": {"c": {"required": ["d"]}}},
    {"properties": {"c": B, "a": {}}, "const": UNLISTED},
    {"allOf": [{"properties": {"c": B}}, {"properties": {"c": {"required": ["d"]}, "a": {}}}]},
]  # fmt: skip


@pytest.mark.parametrize("schema", LEFT, ids=json.dumps)
def test_what_says_more_of_an_object_than_its_properties_is_left_open(schema: Any) -> None:
    closed = closed_schema(schema)
    assert valid(schema, UNLISTED)
    assert valid(closed, UNLISTED)


def smaller(value: Any) -> list[Any]:
    """The value, and all that it becomes without some of its properties."""
    if not isinstance(value, dict):
        return [value]
    found: list[Any] = [{}]
    for name, one in value.items():
        found += [{**each, name: part} for each in found for part in smaller(one)]
    return found


def check_rule(schema: Any, values: list[Any]) -> None:
    """What the closed schema takes, the schema takes; it takes something where the schema does."""
    try:
        closed, rooted = closed_schema(schema), rooted_schema(schema)
        before, after, same = judge(schema), judge(closed), judge(rooted)
    except ValueError:  # references that lead nowhere
        return
    taken = [one for one in values if before(one)]
    kept = [one for value in values for one in smaller(value) if after(one)]
    for one in kept:
        assert before(one), (closed, one)
    assert kept or not taken, closed
    if schema is not False:
        assert [one for one in values if same(one)] == taken


@pytest.mark.parametrize("name", SCHEMAS)
def test_closing_adds_nothing_and_leaves_something(name: str) -> None:
    check_rule(SCHEMAS[name], VALUES)


NAMES = st.sampled_from("abc")
LEAVES = st.sampled_from(
    [{}, True, False, {"type": "integer"}, {"const": 1}, {"type": "object"}, {"$ref": "#/$defs/d"}]
)


def _larger(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    several = st.lists(inner, min_size=1, max_size=2)
    words: dict[str, st.SearchStrategy[Any]] = {
        "type": st.sampled_from(["object", ["object", "integer"]]),
        "properties": st.dictionaries(NAMES, inner, max_size=2),
        "required": st.lists(NAMES, max_size=2, unique=True),
        "additionalProperties": inner,
        "minProperties": st.integers(0, 2),
        "maxProperties": st.integers(0, 2),
        "allOf": several, "anyOf": several, "oneOf": several, "not": inner,
        "$ref": st.just("#/$defs/d"),
    }  # fmt: skip
    return st.fixed_dictionaries({}, optional=words)


SCHEMA = st.recursive(LEAVES, _larger, max_leaves=5)
FAMILY: list[Any] = [
    *smaller({"a": 1, "b": 1, "c": 1, "d": 1}),
    *smaller({"a": {"a": 1, "b": 1, "d": 1}, "b": 1}),
    *smaller({"b": {"a": 1, "c": 1}, "c": {"b": 1}}),
    1, "x", None,
]  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(schema=_larger(SCHEMA), definition=_larger(LEAVES.filter(lambda one: one != {"$ref": "#/$defs/d"})))
def test_closing_any_schema_adds_nothing_and_leaves_something(schema: Any, definition: Any) -> None:
    if "$ref" in definition:
        definition = {word: one for word, one in definition.items() if word != "$ref"}
    check_rule({**schema, "$defs": {"d": definition}}, FAMILY)


def test_combinations_of_parts_stay_satisfiable() -> None:
    parts: list[Any] = [
        A,
        B,
        {**A, "required": ["a"]},
        {**B, "required": ["b"]},
        {"required": ["b"]},
        {"not": {"required": ["a"]}},
    ]
    for first, other in combinations(parts, 2):
        for word in ("allOf", "anyOf", "oneOf"):
            check_rule({word: [first, other]}, FAMILY)
            check_rule({**first, word: [other]}, FAMILY)
            check_rule({"properties": {"a": {word: [first, other]}}, "required": ["a"]}, FAMILY)
