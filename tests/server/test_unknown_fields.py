"""Fields that no endpoint has are ignored, named in a header of the response, and once in the log."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from graphml.server.requests.request_fields import ChatCompletion
from graphml.server.requests.unknown_fields import MOST_LOGGED, MOST_SHOWN, LoggedOnce, unknown_fields
from tests.server.running_server import Running

HEADER = "X-Graphml-Unknown-Fields"
MESSAGES = [{"role": "user", "content": "Once"}]


@pytest.mark.parametrize(("path", "body", "named"), [
    ("/v1/chat/completions", {"messages": MESSAGES, "max_token": 3, "max_tokens": 1}, "max_token"),
    ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 1, "a": 1, "b.c": 2, "d": None}, "a, b.c"),
    ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 1, "temperature": 0}, None),
    ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 1, "stream": True, "zz": 1}, "zz"),
    ("/completion", {"prompt": "a", "n_predct": 5, "n_predict": 1}, "n_predct"),
    ("/v1/completions", {"prompt": "a", "max_tokens": 1, "promt": ""}, "promt"),
    ("/api/generate", {"prompt": "a", "options": {"num_predict": 1, "num_predic": 1}, "strem": 1},
     "strem, options.num_predic"),
    ("/v1/messages", {"messages": MESSAGES, "max_tokens": 1, "model": "m", "topk": 1}, "topk"),
    ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": -9, "max_token": 1}, "max_token"),
    ("/tokenize", {"content": "a", "add_specal": True}, "add_specal"),
])  # fmt: skip
def test_unknown_fields_are_named_in_a_header(
    server: Running, path: str, body: dict[str, Any], named: str | None
) -> None:
    answer = server.post(path, body)
    assert answer.status_code == (400 if body.get("max_tokens") == -9 else 200), answer.text
    assert answer.headers.get(HEADER) == named


def test_names_that_fit_no_header_are_left_out() -> None:
    odd = {"a\r\nSet-Cookie: x": 1, "\u00e9": 1, "": 1, "x" * 65: 1, "fine-1": 1}
    assert unknown_fields(odd, ChatCompletion, {}) == ("fine-1",)
    assert len(unknown_fields(dict.fromkeys(map(str, range(99)), 1), ChatCompletion, {})) == MOST_SHOWN


def test_a_name_is_logged_once_and_only_so_many(caplog: pytest.LogCaptureFixture) -> None:
    logged = LoggedOnce()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            logged.log("/x", ["max_token"], ChatCompletion)
        assert [record.getMessage() for record in caplog.records] == [
            "/x: unknown field 'max_token' is ignored. Did you mean 'max_tokens'?"
        ]
        logged.log("/y", ["metadata"], ChatCompletion)
        assert caplog.records[-1].getMessage() == "/y: unknown field 'metadata' is ignored."
        logged.log("/x", [f"n{i}" for i in range(2 * MOST_LOGGED)], ChatCompletion)
        logged.log("/x", ["other"], ChatCompletion)
    assert len(caplog.records) == MOST_LOGGED
