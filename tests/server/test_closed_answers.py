"""Schemas of requests: silent objects are closed on each protocol, and open where a request says so."""

from __future__ import annotations

import json
from typing import Any

from graphml.server.requests.request_fields import ChatCompletion, converted
from tests.server.running_server import Running

SILENT = {
    "type": "object",
    "properties": {"a": {"type": "object", "properties": {"b": {"const": 1}}, "required": ["b"]}},
    "required": ["a"],
}
MESSAGES = [{"role": "user", "content": "Once"}]
ANSWER = {"a": {"b": 1}}


def test_each_protocol_closes_silent_objects(server: Running) -> None:
    form = {"type": "json_schema", "json_schema": {"schema": SILENT}}
    many: dict[str, Any] = {"temperature": 1.0, "seed": 1}
    chat = server.post(
        "/v1/chat/completions", {"messages": MESSAGES, "response_format": form, "max_tokens": 400, **many}
    )
    assert json.loads(chat.json()["choices"][0]["message"]["content"]) == ANSWER
    text = {"format": {"type": "json_schema", "name": "x", "schema": SILENT}}
    found = server.post(
        "/v1/responses", {"input": "Once", "text": text, "max_output_tokens": 400, **many}
    ).json()
    assert json.loads(found["output"][0]["content"][0]["text"]) == ANSWER
    config = {"format": {"type": "json_schema", "schema": SILENT}}
    said = {"messages": MESSAGES, "max_tokens": 400, "output_config": config, "temperature": 0}
    assert json.loads(server.post("/v1/messages", said).json()["content"][0]["text"]) == ANSWER
    plain = server.post(
        "/completion", {"prompt": "Once", "json_schema": SILENT, "n_predict": 400, **many}
    ).json()
    assert json.loads(plain["content"]) == ANSWER


def test_a_request_opens_them(server: Running) -> None:
    for asked in (False, True):
        given = converted(
            {"messages": MESSAGES, "json_schema": SILENT, "open_objects": asked}, ChatCompletion
        )
        params = server.service.settings(given).params
        assert ("additionalProperties" in params.json_schema) is params.open_objects is asked
    wrong = server.post("/v1/chat/completions", {"messages": MESSAGES, "open_objects": "yes"})
    assert wrong.status_code == 400
    assert "open_objects" in wrong.text
