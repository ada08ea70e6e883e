"""Functions become schemas from their signatures and docstrings; what cannot be one is refused."""

from __future__ import annotations

import enum
import functools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest

from graphml.api.tools import Tool, tool_of, tools_of
from graphml.errors import UsageError


class Unit(enum.Enum):
    CELSIUS = "c"
    FAHRENHEIT = "f"


@dataclass
class Place:
    name: str
    country: str = "it"


def weather(
    place: Place,
    days: int = 3,
    unit: Unit = Unit.CELSIUS,
    detail: Literal["low", "high"] | None = None,
    tags: list[str] = [],  # noqa: B006 - a default that JSON can hold
    ratio: Annotated[float, "Of what."] = 1,
) -> str:
    """Look up the weather.

    It is a forecast.

    Args:
        place: Where, a city
            or a village.
        days (int): How far.

    Returns:
        A text.
    """
    return f"{place.name}/{place.country}/{days}/{unit.name}/{detail}/{tags}/{ratio}"


def test_a_functions_schema_follows_from_its_signature_and_docstring() -> None:
    tool = tool_of(weather)
    assert (tool.name, tool.description) == ("weather", "Look up the weather.\n\nIt is a forecast.")
    place = tool.parameters["properties"]["place"]
    assert place["properties"] == {"name": {"type": "string"}, "country": {"type": "string"}}
    assert place["description"] == "Where, a city or a village."
    assert tool.parameters["required"] == ["place"]
    assert {name: one for name, one in tool.parameters["properties"].items() if name != "place"} == {
        "days": {"type": "integer", "description": "How far.", "default": 3},
        "unit": {"enum": ["c", "f"], "default": "c"},
        "detail": {"anyOf": [{"enum": ["low", "high"]}, {"type": "null"}]},
        "tags": {"type": "array", "items": {"type": "string"}, "default": []},
        "ratio": {"type": "number", "description": "Of what.", "default": 1},
    }
    json.dumps(tool.as_openai())


def test_arguments_become_the_types_of_the_function() -> None:
    result = tool_of(weather).call({"place": {"name": "Rome"}, "unit": "f", "tags": ["a"], "detail": "low"})
    assert result == "Rome/it/3/FAHRENHEIT/low/['a']/1"


def test_docstrings_with_param_fields_are_read() -> None:
    def f(x: int) -> int:
        """Double it.

        :param x: What is doubled.
        :returns: twice of it
        """
        return 2 * x

    tool = tool_of(f)
    assert tool.description == "Double it."
    assert tool.parameters["properties"]["x"]["description"] == "What is doubled."
    assert tool.call({"x": 4}) == "8"


def test_results_are_text_and_errors_are_told() -> None:
    def fails(x: int = 0) -> Any:
        if x:
            raise ValueError("no such city")
        return {"a": [1, "ü"], "p": None}

    tool = tool_of(fails)
    assert tool.call({}) == '{"a": [1, "ü"], "p": null}'
    assert tool.call({"x": 1}) == "Error: ValueError: no such city"
    assert tool.call({"y": 1}) == "Error: TypeError: there is no argument y; there are x"


def test_descriptions_of_openai_are_taken() -> None:
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}}
    described = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    assert tool_of(described) == Tool("f", "", parameters)
    assert tool_of(described["function"]).as_openai()["function"]["name"] == "f"
    assert tool_of({"name": "g"}).parameters == {"type": "object", "properties": {}}
    with pytest.raises(UsageError, match="f is a description without a function"):
        tool_of(described).call({})


class Odd(enum.Enum):
    PAIR = (1, 2)


@dataclass
class Lost:
    a: Nowhere  # type: ignore[name-defined] # noqa: F821 - it is nowhere


def test_arguments_within_others_become_their_types() -> None:
    def f(
        a: tuple[int, Unit],
        b: tuple[Unit, ...],
        c: dict[str, Place],
        d: Sequence[Unit],
        e: Literal[Unit.CELSIUS],
    ) -> str:
        return repr((a[1].name, b[0].name, c["x"].country, d[0].name, e.name))

    tool = tool_of(f)
    assert tool.parameters["properties"]["e"] == {"enum": ["c"]}
    given = {"a": [1, "c"], "b": ["f"], "c": {"x": {"name": "Rome"}}, "d": ["c"], "e": "c"}
    assert tool.call(given) == "('CELSIUS', 'FAHRENHEIT', 'it', 'CELSIUS', 'CELSIUS')"


def test_models_of_pydantic_are_parameters_and_results() -> None:
    pydantic = pytest.importorskip("pydantic", reason="pydantic is not installed")
    Spot: Any = pydantic.create_model("Spot", x=(int, ...), unit=(Unit, Unit.CELSIUS))
    Trip: Any = pydantic.create_model("Trip", begin=(Spot, ...), stops=(list[Spot], []))

    def f(trip, way, none=None):  # type: ignore[no-untyped-def]
        return trip if way else repr((trip.begin.unit.name, none))

    f.__annotations__ = {"trip": Trip, "way": list[Spot], "none": Spot | None}
    tool = tool_of(f)
    assert "$ref" not in json.dumps(tool.parameters)
    spot = tool.parameters["properties"]["trip"]["properties"]["begin"]
    assert (spot["type"], spot["required"], spot["properties"]["unit"]["enum"]) == (
        "object", ["x"], ["c", "f"],
    )  # fmt: skip
    given: dict[str, Any] = {"trip": {"begin": {"x": 1}}, "way": []}
    assert tool.call(given) == "('CELSIUS', None)"
    given["way"] = [{"x": 2, "unit": "f"}]
    assert json.loads(tool.call(given)) == {"begin": {"x": 1, "unit": "c"}, "stops": []}
    assert tool.call({"trip": {"begin": {"x": "many"}}, "way": []}).startswith("Error: ValidationError: 1 ")

    f.__annotations__ = {"trip": Annotated[Spot, "Where from."]}
    assert tool_of(f).parameters["properties"]["trip"]["description"] == "Where from."

    class Elsewhere:
        @staticmethod
        def model_json_schema() -> dict[str, str]:
            return {"$ref": "#/definitions/Spot"}

    f.__annotations__ = {"trip": Elsewhere}
    with pytest.raises(
        UsageError, match=r"tools: f\.trip: its schema refers to '#/definitions/Spot'; wanted"
    ):
        tool_of(f)

    class Tree(pydantic.BaseModel):  # type: ignore[misc, name-defined]
        leaves: list[Tree]

    Tree.model_rebuild(_types_namespace={"Tree": Tree})
    f.__annotations__ = {"trip": Tree}
    with pytest.raises(UsageError, match=r"tools: f\.trip: types that contain themselves are not supported"):
        tool_of(f)


def test_partial_functions_offer_what_is_still_open() -> None:
    def f(user: str, city: Annotated[str, "Where."], days: int = 1) -> str:
        """Look up."""
        return f"{user}/{city}/{days}"

    tool = tool_of(functools.partial(f, "Ann", days=3))
    assert (tool.name, tool.description) == ("f", "Look up.")
    assert tool.parameters["properties"] == {"city": {"type": "string", "description": "Where."}}
    assert tool.call({"city": "Rome"}) == "Ann/Rome/3"
    assert tool.call({"city": "Rome", "days": 9}).startswith("Error: TypeError: there is no argument days")


def test_lines_of_a_docstring_that_name_no_argument_go_on() -> None:
    def google(city: str, days: int) -> None:
        """Look up.

        Args:
            city: Where, one of
                Rome: the capital
            days: How far.
        """

    def sphinx(city: str) -> None:
        """Look up.

        :param str city: Where it is,
            in a country.
        :type city: str
        :returns: nothing
            at all
        """

    found = tool_of(google).parameters["properties"]
    assert [found[name]["description"] for name in ("city", "days")] == [
        "Where, one of Rome: the capital",
        "How far.",
    ]
    assert tool_of(sphinx).parameters["properties"]["city"]["description"] == "Where it is, in a country."


def star(*x: int) -> None: ...


async def later(x: int) -> None: ...


def yields(x: int) -> Iterator[int]:
    yield x


def pair(x: Odd) -> None: ...


def raw(x: Literal[b"x"]) -> None: ...


def lost(x: Lost) -> None: ...


def endless(x: float = float("inf")) -> None: ...


def words(x: "no type") -> None: ...  # type: ignore[valid-type] # noqa: F722 - no expression


def module(x: enum.Nothing) -> None: ...  # type: ignore[name-defined]


def long_name() -> None: ...


long_name.__name__ = "f" * 100


def strange(x: object) -> None: ...


def unknown(x: "Nowhere") -> None: ...  # noqa: F821, UP037 - it is nowhere


def undefault(x: Any = object()) -> None: ...  # noqa: B008 - no JSON


@pytest.mark.parametrize(
    ("tools", "says"),
    [
        ("weather", "tools: wanted a list of functions or descriptions, got text"),
        ([3], r"tools\[0\]: wanted a function or a description as OpenAI has it, got 3"),
        ([weather, weather], "tools: wanted each name once, got weather twice"),
        ([star], r"tools: star: wanted parameters that have a name, got \*x: .?int"),
        ([strange], r"tools: strange\.x: the type .* has no schema; wanted str, .* or a pydantic model"),
        ([unknown], "tools: unknown: its signature cannot be read: .*Nowhere"),
        ([undefault], r"tools: undefault\.x: wanted a default that JSON can hold"),
        ([lambda x: x], r"tools\[0\]: wanted a function with a name .*'<lambda>'"),
        ([long_name], r"wanted a function with a name of 1 to 64 letters, .* got the name 'fff"),
        ([later], r"tools\[0\]: wanted a function that returns its result; later is async"),
        ([yields], "yields is async or a generator"),
        ([pair], r"pair\.x: .*Odd.* has no schema; wanted texts, numbers or None"),
        ([raw], r"raw\.x: .* has no schema; wanted texts"),
        ([lost], r"tools: lost\.x: its types cannot be read: .*Nowhere"),
        ([Place.__init__], "tools: __init__: wanted a method of an object, got that of a class, with self"),
        ([Place], r"tools\[0\]: wanted a function or a description as OpenAI has it, got the class Place"),
        ([endless], r"tools: endless\.x: wanted a default that JSON can hold, got inf"),
        ([words], "tools: words: its signature cannot be read"),
        ([module], "tools: module: its signature cannot be read"),
        ([{"type": "retrieval"}], r"tools\[0\]: wanted a tool of type 'function', got 'retrieval'"),
        ([{"name": "a b"}], r"tools\[0\]\.name: wanted 1 to 64 letters"),
        ([{"name": "a", "parameters": 3}], r"tools\[0\]\.parameters: wanted a JSON schema, got a number"),
    ],
    ids=range(22),
)
def test_what_is_no_tool_is_refused(tools: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        tools_of(tools)
