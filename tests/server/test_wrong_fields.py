"""What is said of a request's field whose type or range is wrong, in words that name no library."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.running_server import Running


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"max_tokens": "ten"}, "max_tokens", 'wanted a whole number or null, got "ten"'),
        ({"max_tokens": 1.5}, "max_tokens", "wanted a whole number or null, got 1.5"),
        ({"max_tokens": -5}, "max_tokens", "wanted a whole number of at least -1, got -5"),
        ({"top_p": 2}, "top_p", "wanted a number of at most 1, got 2"),
        ({"repeat_penalty": 0}, "repeat_penalty", "wanted a number above 0, got 0"),
        ({"stream": "yes"}, "stream", 'wanted true, false or null, got "yes"'),
        ({"stop": True}, "stop", "wanted a text, a list or null, got true"),
        ({"stop": ["a", 1]}, "stop", "stop[1]: wanted a text, got a whole number"),
        ({"stream_options": {"include_usage": []}}, "stream_options",
         "stream_options.include_usage: wanted true, false or null, got a list"),
        ({"response_format": [1]}, "response_format", "wanted an object or null, got a list"),
        ({"speculative.n_max": "x"}, "speculative.n_max", 'wanted a whole number or null, got "x"'),
        ({"grammar": 5 * 10**18}, "grammar", "wanted a text or null, got 5000000000000000000"),
        ({"seed": "9" * 99}, "seed", 'wanted a whole number or null, got "' + "9" * 39),
    ],
)  # fmt: skip
def test_a_wrong_field_says_what_was_wanted_and_what_came(
    server: Running, fields: dict[str, Any], param: str, said: str
) -> None:
    messages = [{"role": "user", "content": "Once"}]
    refused = server.post("/v1/chat/completions", {"messages": messages, **fields})
    error = refused.json()["error"]
    assert (refused.status_code, error["param"]) == (400, param)
    assert error["message"] == f"Field '{param}': {said}"


def test_of_two_wrong_fields_one_is_named(server: Running) -> None:
    refused = server.post("/completion", {"prompt": "Once", "n_predict": "ten", "temperature": "hot"})
    error = refused.json()["error"]
    assert (refused.status_code, error["param"]) == (400, "temperature")
    assert error["message"] == "Field 'temperature': wanted a number or null, got \"hot\""
