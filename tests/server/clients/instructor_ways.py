"""Instructor's ways to ask for an object, as a program: `instructor_ways.py ADDRESS` writes what each gives.

A program, for instructor has an environment of its own. What a model is to say stands in the message, between
marks; with `--real` there are none, and a real model is asked.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Iterable
from typing import Any, Literal

import anthropic
import instructor
import openai
from pydantic import BaseModel, Field, field_validator


class City(BaseModel):
    name: str = Field(max_length=20)  # a model that runs on has an end
    pace: Literal["slow", "fast"]  # of an Enum it makes no partial objects


class Trip(BaseModel):
    city: City
    days: int = Field(ge=0, le=30)


class Weather(BaseModel):
    city: str


class Checked(Trip):
    @field_validator("days")
    @classmethod
    def some_days(cls, days: int) -> int:
        if days < 1:
            raise ValueError("at least a day is wanted")
        return days


ADDRESS = sys.argv[1]
CLIENT = openai.OpenAI(base_url=f"{ADDRESS}/v1", api_key="none", max_retries=2)
CLAUDE = anthropic.Anthropic(base_url=ADDRESS, api_key="none", max_retries=2)
JSON = json.dumps({"city": {"name": "Rome", "pace": "slow"}, "days": 2})
TRIP = Trip(city=City(name="Rome", pace="slow"), days=2)
MODES = instructor.Mode
CALLED = (MODES.TOOLS, MODES.TOOLS_STRICT)
WRITTEN = (MODES.JSON, MODES.MD_JSON, MODES.JSON_SCHEMA)


def same(found: BaseModel) -> bool:
    """Whether it is the trip; instructor makes a class of its own of some."""
    return found.model_dump() == TRIP.model_dump()


def called(*made: tuple[str, str]) -> str:
    each = [{"name": name, "arguments": json.loads(text)} for name, text in made]
    return json.dumps(each if len(each) > 1 else each[0])


def asked(wish: str) -> list[Any]:
    said = f"\n[[{wish}]]" if wish else ""
    return [{"role": "user", "content": f"Two slow days in Rome.{said}"}]


def made(mode: Any) -> Any:
    return instructor.from_openai(CLIENT, mode=mode)


HOW: dict[str, Any] = {"model": "any", "max_tokens": 700, "temperature": 0}


def one(mode: Any, real: bool = False) -> Callable[[], bool]:
    def way() -> bool:
        wish = called(("Trip", JSON)) if mode in CALLED else JSON
        found = made(mode).chat.completions.create(
            messages=asked("" if real else wish), response_model=Trip, max_retries=0, **HOW
        )
        return same(found) or (real and isinstance(found, Trip))

    return way


def responses(real: bool = False) -> Callable[[], bool]:
    def way() -> bool:
        found = made(MODES.RESPONSES_TOOLS).responses.create(
            model="any", input=asked("" if real else called(("Trip", JSON))), response_model=Trip,
            max_retries=0, max_output_tokens=700, temperature=0,
        )  # fmt: skip
        return same(found) or (real and isinstance(found, Trip))

    return way


def messages(mode: Any, real: bool = False) -> Callable[[], bool]:
    """Anthropic's protocol."""

    def way() -> bool:
        client = instructor.from_anthropic(CLAUDE, mode=mode)
        wish = called(("Trip", JSON)) if mode is MODES.ANTHROPIC_TOOLS else JSON
        found = client.messages.create(
            messages=asked("" if real else wish), response_model=Trip, max_retries=0, **HOW
        )
        return same(found) or (real and isinstance(found, Trip))

    return way


def partial(mode: Any) -> Callable[[], bool]:
    def way() -> bool:
        wish = called(("PartialTrip", JSON)) if mode in CALLED else JSON
        parts = list(made(mode).chat.completions.create_partial(
            messages=asked(wish), response_model=Trip, max_retries=0, **HOW
        ))  # fmt: skip
        return len(parts) > 3 and Trip.model_validate(parts[-1].model_dump()) == TRIP

    return way


def several(mode: Any) -> Callable[[], bool]:
    def way() -> bool:
        listed = json.dumps({"tasks": [json.loads(JSON)] * 2})
        wish = called(("IterableTrip", listed)) if mode in CALLED else listed
        found = made(mode).chat.completions.create_iterable(
            messages=asked(wish), response_model=Trip, max_retries=0, **HOW
        )
        return [same(one) for one in found] == [True, True]

    return way


def parallel() -> bool:
    wish = called(("Trip", JSON), ("Weather", '{"city": "Rome"}'))
    found = made(MODES.PARALLEL_TOOLS).chat.completions.create(
        messages=asked(wish), response_model=Iterable[Trip | Weather], max_retries=0, **HOW
    )
    return [one.model_dump() for one in found] == [TRIP.model_dump(), {"city": "Rome"}]


def retried(mode: Any) -> Callable[[], bool]:
    def way() -> bool:
        wrong = JSON.replace("2", "0")
        texts = [called(("Checked", text)) if mode in CALLED else text for text in (wrong, JSON)]
        found, completion = made(mode).chat.completions.create_with_completion(
            messages=asked("]][[".join(texts)), response_model=Checked, max_retries=2, **HOW
        )
        return bool(found.days == 2 and completion.usage.completion_tokens)

    return way


def refused() -> bool:
    try:
        made(MODES.TOOLS).chat.completions.create(
            messages=asked("x"), response_model=Trip, max_retries=0, top_p=7, **HOW
        )
    except Exception as error:  # its class has moved often
        return type(error).__name__ == "InstructorRetryException" and "top_p" in str(error)
    return False


WAYS: dict[str, Callable[[], bool]] = {
    **{f"{mode.name}": one(mode) for mode in (*CALLED, *WRITTEN)},
    "RESPONSES_TOOLS": responses(),
    **{f"{mode.name}": messages(mode) for mode in (MODES.ANTHROPIC_TOOLS, MODES.ANTHROPIC_JSON)},
    **{f"{mode.name}, partial": partial(mode) for mode in (*CALLED, *WRITTEN)},
    **{f"{mode.name}, several": several(mode) for mode in (MODES.TOOLS, MODES.JSON, MODES.JSON_SCHEMA)},
    "PARALLEL_TOOLS": parallel,
    **{f"{mode.name}, retried": retried(mode) for mode in (MODES.TOOLS, MODES.JSON_SCHEMA)},
    "refused": refused,
}
REAL: dict[str, Callable[[], bool]] = {
    **{f"{mode.name}": one(mode, True) for mode in (MODES.TOOLS, MODES.JSON_SCHEMA)},
    "RESPONSES_TOOLS": responses(True),
    "ANTHROPIC_TOOLS": messages(MODES.ANTHROPIC_TOOLS, True),
}


def main() -> None:
    found: dict[str, Any] = {}
    for name, way in (REAL if "--real" in sys.argv else WAYS).items():
        try:
            found[name] = way()
        except Exception:
            found[name] = traceback.format_exc()[-1500:]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
