"""Requests that want one of six tools, with what its arguments must hold; for `structured_answers.py`."""

from __future__ import annotations

from typing import Any, NamedTuple


class Task(NamedTuple):
    """A request, the tool that does it, and a text that its arguments hold, in lower case."""

    request: str
    tool: str
    argument: str


def _tool(name: str, description: str, **properties: Any) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


_TEXT = {"type": "string", "maxLength": 40}
_NUMBER = {"type": "integer"}
TOOLS = [
    _tool("get_weather", "Current weather of a city.", city=_TEXT),
    _tool("get_time", "Current time in a city.", city=_TEXT),
    _tool(
        "convert_currency",
        "Converts an amount of money.",
        **{
            "amount": _NUMBER,
            "from": {"type": "string", "maxLength": 12},
            "to": {"type": "string", "maxLength": 12},
        },
    ),
    _tool("set_alarm", "Sets an alarm.", hour=_NUMBER, minute=_NUMBER),
    _tool("translate", "Translates a text.", text=_TEXT, language={"type": "string", "maxLength": 20}),
    _tool("send_email", "Sends an email.", to=_TEXT, subject=_TEXT),
]
_CITIES = ("Paris", "Berlin", "Rome", "Madrid", "Tokyo", "London", "Cairo", "Oslo", "Boston", "Lima")
_MONEY = (
    "100 dollars to euros",
    "25 euros to yen",
    "7 pounds to francs",
    "300 dollars to pounds",
    "12 yen to euros",
)
_HOURS = ("7:30", "6:15", "9:45", "5:20", "8:10")
_TEXTS = ("'good morning' to French", "'thank you' to German", "'the house is red' to Spanish")
_MORE_TEXTS = ("'I like tea' to Italian", "'hello' to Japanese")
_LETTERS = ("anna lunch", "bob the meeting", "carl holidays", "dora the invoice", "eva football")


def tasks() -> list[Task]:
    """All of them."""
    found = [Task(f"What is the weather in {city}?", "get_weather", city.lower()) for city in _CITIES]
    found += [Task(f"What time is it in {city} now?", "get_time", city.lower()) for city in _CITIES]
    found += [Task(f"Convert {what}.", "convert_currency", what.split()[0]) for what in _MONEY]
    found += [Task(f"Wake me up at {hour}.", "set_alarm", f'"hour": {hour[0]},') for hour in _HOURS]
    found += [
        Task(f"Translate {what}.", "translate", what.split()[-1].lower()) for what in (*_TEXTS, *_MORE_TEXTS)
    ]
    for letter in _LETTERS:
        name, _, subject = letter.partition(" ")
        address = f"{name}@example.com"
        found.append(Task(f"Send an email to {address} about {subject}.", "send_email", address))
    return found
