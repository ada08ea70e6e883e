"""Forms of schemas: of Python types, closed, opened, as parts of grammars, and the limits on them."""

from __future__ import annotations

import dataclasses
import enum
import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Optional, Union

import pytest

from graphml.errors import UsageError
from graphml.sampling import SamplingParams, json_schema
from graphml.sampling.schemas.schema_closing import closed_schema, opened_schema, rooted_schema
from graphml.sampling.schemas.schema_members import schema_of_members
from graphml.sampling.schemas.schema_words import MOST_REMAINDERS, check_multiples, check_words, referred
from graphml.sampling.schemas.type_schemas import MAX_LEVELS, schema_of_annotation, schema_of_type
from graphml.sampling.structured.schema_structure import forceable_part, schema_of_part


class Colour(enum.Enum):
    RED = "red"
    BLUE = 3


class Stated:
    """States its schema itself, as pydantic's models do."""

    @staticmethod
    def model_json_schema() -> dict[str, Any]:
        return {
            "$defs": {"size": {"type": "integer", "title": "Size"}},
            "type": "object",
            "properties": {"size": {"$ref": "#/$defs/size", "minimum": 1}, "$ref": {"enum": [["$ref", 1]]}},
            "required": ["size"],
        }


@dataclasses.dataclass
class Inner:
    name: str
    size: int = 0


@dataclasses.dataclass
class Outer:
    inner: Inner
    several: list[Inner]
    named: dict[str, float]
    late: bool = dataclasses.field(init=False)
    made: list[int] = dataclasses.field(default_factory=list)


INNER = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "size": {"type": "integer"}},
    "required": ["name"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("kind", "schema"),
    [
        (str, {"type": "string"}),
        (type(None), {"type": "null"}),
        (Any, {}),
        (Annotated[int, "how many", "more"], {"type": "integer", "description": "how many"}),
        (Annotated[int, 5], {"type": "integer"}),
        (Literal["a", 5, Colour.BLUE], {"enum": ["a", 5, 3]}),
        (Colour, {"enum": ["red", 3]}),
        (Optional[int], {"anyOf": [{"type": "integer"}, {"type": "null"}]}),  # noqa: UP045
        (Union[int, str], {"anyOf": [{"type": "integer"}, {"type": "string"}]}),  # noqa: UP007
        (int | None, {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
        (list[int], {"type": "array", "items": {"type": "integer"}}),
        (Sequence[int], {"type": "array", "items": {"type": "integer"}}),
        (set[int], {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}),
        (tuple[int, ...], {"type": "array", "items": {"type": "integer"}}),
        (
            tuple[int, str],
            {
                "type": "array",
                "prefixItems": [{"type": "integer"}, {"type": "string"}],
                "minItems": 2,
                "maxItems": 2,
            },
        ),
        (Mapping[str, bool], {"type": "object", "additionalProperties": {"type": "boolean"}}),
        (Inner, INNER),
        (
            Stated,
            {
                "type": "object",
                "properties": {
                    "size": {"type": "integer", "title": "Size", "minimum": 1},
                    "$ref": {"enum": [["$ref", 1]]},
                },
                "required": ["size"],
            },
        ),
    ],
)
def test_a_type_has_a_schema(kind: Any, schema: Any) -> None:
    assert schema_of_annotation(kind, "x") == schema


def test_dataclasses_have_the_fields_that_are_given() -> None:
    schema = schema_of_type(Outer)
    assert list(schema["properties"]) == ["inner", "several", "named", "made"]
    assert schema["required"] == ["inner", "several", "named"]
    assert schema["properties"]["several"] == {"type": "array", "items": INNER}
    assert schema_of_type(Stated) == Stated.model_json_schema()  # whole: its references lead to its own


def nested(levels: int) -> Any:
    kind: Any = int
    for _ in range(levels):
        kind = list[kind]
    return kind


def test_types_are_nested_so_deep_and_no_deeper() -> None:
    assert schema_of_annotation(nested(MAX_LEVELS), "x")["type"] == "array"
    with pytest.raises(UsageError, match="x: types that contain themselves"):
        schema_of_annotation(nested(MAX_LEVELS + 1), "x")


class Endless:
    @staticmethod
    def model_json_schema() -> dict[str, Any]:
        return {"$defs": {"a": {"items": {"$ref": "#/$defs/a"}}}, "$ref": "#/$defs/a"}


class Leading:
    @staticmethod
    def model_json_schema() -> dict[str, Any]:
        return {"$ref": "#/$defs/none"}


class Silent:
    @staticmethod
    def model_json_schema() -> Any:
        return None


class NoValues(enum.Enum):
    pass


class Odd(enum.Enum):
    ONE = (1, 2)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (complex, "x: the type .*complex.* has no schema"),
        (dict[int, str], "has no schema"),
        (Endless, "types that contain themselves"),
        (Leading, "its schema refers to '#/\\$defs/none'"),
        (Silent, "states no schema"),
        (NoValues, "has no schema; wanted texts, numbers or None"),
        (Odd, "has no schema; wanted texts, numbers or None"),
    ],
)
def test_a_type_without_a_schema_is_named(kind: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        schema_of_annotation(kind, "x")


@pytest.mark.parametrize(("extra", "closes"), [(255, True), (256, False)])
def test_an_object_of_so_many_parts_is_closed_and_of_more_is_left(extra: int, closes: bool) -> None:
    schema = {"allOf": [{"properties": {f"p{i}": {}}} for i in range(extra)], "properties": {"a": {}}}
    closed = closed_schema(schema)
    assert isinstance(closed, dict)
    assert (closed.get("additionalProperties") is False) is closes
    if closes:
        assert set(closed["properties"]) == {"a", *(f"p{i}" for i in range(extra))}


def test_definitions_become_those_of_the_part() -> None:
    schema = {
        "definitions": {"x": {"properties": {"b": {}}}},
        "properties": {"a": {"$ref": "#/definitions/x"}},
    }
    rooted = rooted_schema(schema)
    assert isinstance(rooted, dict)
    assert rooted["$defs"] == {"d0": {"properties": {"b": {}}}}
    assert rooted["properties"] == {"a": {"$ref": "#/$defs/d0"}}
    closed = closed_schema(schema)
    assert isinstance(closed, dict)
    assert closed["$defs"]["d0"] == {"properties": {"b": {}}, "additionalProperties": False}
    assert closed["additionalProperties"] is False
    for unfollowed in ({"$dynamicRef": "#a", "properties": {"a": {}}}, {"$ref": "#/nowhere"}, True, False):
        assert closed_schema(unfollowed) == rooted_schema(unfollowed) == unfollowed


def test_opened_objects() -> None:
    schema = {"properties": {"a": {"properties": {}}, "b": {"properties": {}, "additionalProperties": False}}}
    assert opened_schema(schema) == {
        "properties": {
            "a": {"properties": {}, "additionalProperties": True},
            "b": {"properties": {}, "additionalProperties": False},
        },
        "additionalProperties": True,
    }
    assert opened_schema({"type": "object"}) == {"type": "object"}


def test_parts_of_grammars_are_closed_unless_that_is_not_wanted() -> None:
    text = json.dumps({"type": "object", "properties": {"a": {"type": "integer"}}})
    closed, opened = schema_of_part(text), schema_of_part(text, closed=False)
    assert isinstance(closed, dict)
    assert isinstance(opened, dict)
    assert closed["additionalProperties"] is False
    assert "additionalProperties" not in opened
    with pytest.raises(UsageError, match="at #/not: not is not supported"):
        schema_of_part('{"not": {}}')


def of_nots(count: int) -> str:
    words = ("not", "if", "contains", "uniqueItems", "propertyNames", "unevaluatedProperties")
    several = {f"p{i}": {words[i % 6]: True if i % 6 == 3 else {"const": i}} for i in range(count)}
    return json.dumps({"type": "object", "properties": several})


def test_what_cannot_be_forced_is_left_out_by_its_place() -> None:
    schema, places = forceable_part(of_nots(1))
    assert places == ("#/properties/p0/not",)
    assert isinstance(schema, dict)
    assert schema["properties"] == {"p0": {}}


def test_multiples_are_counted_together() -> None:
    assert check_multiples({"multipleOf": MOST_REMAINDERS}) == {"multipleOf": MOST_REMAINDERS}
    for schema, place in [
        ({"multipleOf": MOST_REMAINDERS + 1}, "#/multipleOf"),
        ({"items": {"multipleOf": 101}, "allOf": [{"multipleOf": 103}]}, "multipleOf"),
    ]:
        with pytest.raises(UsageError, match=f"at {place}" if place[0] == "#" else place):
            check_multiples(schema)
    assert check_multiples({"items": {"multipleOf": 0.25}, "not": {"multipleOf": 100}})


@pytest.mark.parametrize("word", ["maxLength", "minItems", "maxProperties", "minContains"])
def test_counts_are_whole_and_not_below_0(word: str) -> None:
    for count in (0, 1, 2.0, 10**9):
        assert check_words({word: count}) == {word: count}
    for wrong in (-1, 0.5, "1", None, True, [1]):
        with pytest.raises(UsageError, match=rf"at #/{word}: wanted a whole number, 0 or more"):
            check_words({word: wrong})


@pytest.mark.parametrize(
    ("word", "right", "wrong"),
    [
        ("type", ["null", ["integer", "null"]], ["text", [], 3, ["integer", 5]]),
        ("enum", [[], [1]], [1, {}]),
        ("required", [[], ["a"], True], ["a", [1]]),
        ("dependentRequired", [{}, {"a": ["b"]}], [[], {"a": "b"}]),
        ("multipleOf", [0.5, 3], [0, -1, "2", True]),
        ("exclusiveMaximum", [3, True], ["3", None]),
        ("minimum", [-1.5], [True, "1"]),
        ("pattern", ["a"], [1, None]),
        ("uniqueItems", [True, False], [0, "true"]),
        ("items", [{}, True, [{}]], [1, "a"]),
        ("anyOf", [[{}], [True, {}]], [[], {}, [1]]),
    ],
)
def test_words_have_the_kinds_of_their_values(word: str, right: list[Any], wrong: list[Any]) -> None:
    for value in right:
        assert check_words({word: value}) == {word: value}
    for value in wrong:
        with pytest.raises(UsageError, match=f"at #/(properties/x/)?{word}"):
            check_words({"properties": {"x": {word: value}}})


def test_references_are_followed() -> None:
    root = {"$defs": {"a/b": {"$anchor": "here"}, "~": [True, {"type": "null"}], "i": {"$id": "#old"}}}
    assert referred(root, "#") is root
    assert referred(root, "#/$defs/a~1b") == referred(root, "/$defs/a~1b") == {"$anchor": "here"}
    assert referred(root, "#here") == {"$anchor": "here"}
    assert referred(root, "#old") == {"$id": "#old"}
    assert referred(root, "#/$defs/~0/1") == {"type": "null"}
    for wrong in ("#/$defs/~0/2", "#/$defs/none", "#nowhere", "#/$defs/~0", "a", "#/$defs/~0/x"):
        with pytest.raises(Exception, match=r"leads (nowhere|out|to no)"):
            referred(root, wrong)


def test_token_ids_are_whole_numbers_from_0() -> None:
    assert SamplingParams(stop_tokens={0, 7}).stop_tokens == {0, 7}
    for wrong in (-1, 0.5, "1", True):
        with pytest.raises(UsageError, match="stop_tokens"):
            SamplingParams(stop_tokens=[wrong])


def test_members_are_those_that_any_part_lists() -> None:
    schema = {
        "$defs": {
            "n": {"type": "integer", "minimum": 1},
            "more": {"properties": {"d": {}}, "required": ["d"]},
        },
        "properties": {"a": {"$ref": "#/$defs/n", "title": "A"}, "b": True, "gone": False},
        "required": ["a", "unknown", 3],
        "allOf": [
            {"$ref": "#/$defs/more"},
            {"properties": {"b": {"type": "null"}}, "additionalProperties": {}},
        ],
        "anyOf": [{"properties": {"e": {}}, "required": ["e"]}, {"required": ["b"]}],
        "oneOf": [{"required": ["b"]}],
    }
    members = schema_of_members(schema)
    assert members["properties"] == {
        "a": {"type": "integer", "minimum": 1, "title": "A"},
        "b": {"type": "null"},
        "d": {},
        "e": {},
    }
    assert members["required"] == ["a", "b", "d"]
    assert members["additionalProperties"] == {}
    assert members["$defs"] == schema["$defs"]
    assert schema_of_members({"properties": 3, "required": "a", "allOf": {}, "$ref": "#/no"}) == {
        "type": "object",
        "properties": {},
        "required": [],
    }


@pytest.mark.parametrize("n", [255, 256])
def test_members_of_so_many_parts_are_read(n: int) -> None:
    parts = [{"properties": {f"p{i}": {}}} for i in range(n)]
    assert len(schema_of_members({"allOf": parts})["properties"]) == 255


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (
            {"type": "string", "pattern": "a(b"},
            r"^json_schema, at #/pattern: .*a\(b.*': unclosed group$",
        ),
        (
            {"patternProperties": {"a[": {}}},
            r"at #/patternProperties/a\[: .*: unclosed character",
        ),
        ({"minimum": 3, "maximum": 2, "type": "integer"}, r"^json_schema: (?!None)[^\n]+$"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(schema: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        json_schema(schema)
