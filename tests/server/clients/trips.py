"""What the tests of all libraries ask for: a trip, by a nested type, and the weather, by a tool."""

from __future__ import annotations

import json
from enum import Enum
from typing import Any

from pydantic import BaseModel, Field


class Pace(Enum):
    SLOW = "slow"
    FAST = "fast"


class City(BaseModel):
    """Where to."""

    name: str = Field(max_length=20)  # a model that runs on has an end
    pace: Pace


class Trip(BaseModel):
    """A trip."""

    city: City
    days: int = Field(ge=0, le=30)


ENOUGH = 700
"""Tokens of a trip with as much space as a schema lets a model write."""
ASKED = "Two slow days in Rome."
MESSAGES: list[Any] = [{"role": "user", "content": ASKED}]
TRIP = Trip(city=City(name="Rome", pace=Pace.SLOW), days=2)
JSON = json.dumps({"city": {"name": "Rome", "pace": "slow"}, "days": 2})
WEATHER: dict[str, Any] = {
    "name": "weather", "description": "Look up the weather.",
    "parameters": {
        "type": "object", "properties": {"city": {"type": "string"}, "unit": {"enum": ["C", "F"]}},
        "required": ["city"],
    },
}  # fmt: skip
CLOCK: dict[str, Any] = {
    "name": "clock", "description": "The time.", "parameters": {"type": "object", "properties": {}},
}  # fmt: skip


def calls(*made: tuple[str, str]) -> str:
    """What a model without a format of its own writes for calls."""
    each = [f'{{"name": "{name}", "arguments": {arguments}}}' for name, arguments in made]
    return f"[{', '.join(each)}]" if len(each) > 1 else each[0]


ROME = '{"city": "Rome", "unit": "C"}'
ROUNDS = (calls(("weather", ROME)), "It is sunny in Rome.")
"""An agent's answers: a call, and with its result the text."""
