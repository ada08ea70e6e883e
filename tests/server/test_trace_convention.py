"""Spans of the model's work, against the table of OpenTelemetry's GenAI convention (1.41)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import graphml
from graphml.server.observing.trace_export import TraceExport, spans_of
from graphml.server.options.server_options import ServerOptions
from tests.server.running_server import Running, running
from tests.server.test_request_log import collector, spans_in

REQUIRED, RECOMMENDED = "required", "recommended"
KINDS = {"string": "stringValue", "int": "intValue", "double": "doubleValue", "boolean": "boolValue",
         "string[]": "arrayValue"}  # fmt: skip
INFERENCE = {
    "gen_ai.operation.name": ("string", REQUIRED),
    "gen_ai.provider.name": ("string", REQUIRED),
    "error.type": ("string", "if the operation ended in an error"),
    "gen_ai.conversation.id": ("string", "when available"),
    "gen_ai.output.type": ("string", "if the request includes an output format"),
    "gen_ai.request.choice.count": ("int", "if in the request, and not 1"),
    "gen_ai.request.model": ("string", "if available"),
    "gen_ai.request.seed": ("int", "if the request includes a seed"),
    "gen_ai.request.stream": ("boolean", "if the request is a stream"),
    "gen_ai.request.top_k": ("double", "if applicable"),
    "server.port": ("int", "if server.address is set"),
    "gen_ai.request.frequency_penalty": ("double", RECOMMENDED),
    "gen_ai.request.max_tokens": ("int", RECOMMENDED),
    "gen_ai.request.presence_penalty": ("double", RECOMMENDED),
    "gen_ai.request.stop_sequences": ("string[]", RECOMMENDED),
    "gen_ai.request.temperature": ("double", RECOMMENDED),
    "gen_ai.request.top_p": ("double", RECOMMENDED),
    "gen_ai.response.finish_reasons": ("string[]", RECOMMENDED),
    "gen_ai.response.model": ("string", RECOMMENDED),
    "gen_ai.response.time_to_first_chunk": ("double", "if the request is a stream"),
    "gen_ai.usage.cache_read.input_tokens": ("int", RECOMMENDED),
    "gen_ai.usage.input_tokens": ("int", RECOMMENDED),
    "gen_ai.usage.output_tokens": ("int", RECOMMENDED),
    "server.address": ("string", RECOMMENDED),
}
"""Key: the type of its value, and when it is there."""
EMBEDDINGS = {
    key: INFERENCE[key]
    for key in (
        "gen_ai.operation.name", "gen_ai.provider.name", "error.type", "gen_ai.request.model", "server.port",
        "gen_ai.response.model", "gen_ai.usage.input_tokens", "server.address",
    )
}  # fmt: skip
ALWAYS = (REQUIRED, RECOMMENDED, "if available", "if applicable", "if server.address is set")
CHAT = {"messages": [{"role": "user", "content": "Once"}], "max_tokens": 4}


@pytest.fixture(scope="module")
def worked(stories: graphml.Model) -> Iterator[Any]:
    """A function of a path and a body: the span of the model's work, and its attributes' values."""
    with collector() as (address, got):
        export = TraceExport(address)
        options = ServerOptions(parallel=2, n_ctx=256, aliases=("stories",))
        with running(options, stories, listeners=[export]) as server:

            def asked(path: str, body: dict[str, Any], table: Any, **headers: str) -> Any:
                server.post(path, body, headers=headers)
                spans = spans_in(got.get(timeout=10)[1])
                return checked(spans, table)

            yield asked
        export.close()


def checked(spans: list[dict[str, Any]], table: dict[str, tuple[str, str]]) -> tuple[str, dict[str, Any]]:
    """The name and attributes of the span of work; each attribute is in the table and of its type."""
    (span,) = [one for one in spans if any(a["key"] == "gen_ai.operation.name" for a in one["attributes"])]
    about: dict[str, Any] = {}
    for attribute in span["attributes"]:
        ((kind, value),) = attribute["value"].items()
        assert kind == KINDS[table[attribute["key"]][0]], attribute
        values = value["values"] if kind == "arrayValue" else ()
        about[attribute["key"]] = [next(iter(one.values())) for one in values] if values else value
    assert span["kind"] == 1  # INTERNAL: the model runs in this process
    return span["name"], about


def always(table: dict[str, tuple[str, str]]) -> set[str]:
    return {key for key, (_, level) in table.items() if level in ALWAYS}


def test_a_chat_has_what_the_convention_wants(worked: Any) -> None:
    more = {
        "seed": 7,
        "n": 2,
        "stop": ["@"],
        "stream": True,
        "temperature": 0.5,
        "json_schema": {"enum": [1]},
    }
    headers = {"X-Conversation-Id": "tale"}
    name, about = worked("/v1/chat/completions", {**CHAT, **more}, INFERENCE, **headers)
    assert name == "chat stories"
    assert about.keys() == INFERENCE.keys() - {"error.type"}
    known = {
        "gen_ai.operation.name": "chat", "gen_ai.provider.name": "graphml", "gen_ai.request.seed": "7",
        "gen_ai.request.choice.count": "2", "gen_ai.request.stop_sequences": ["@"],
        "gen_ai.request.temperature": 0.5, "gen_ai.request.stream": True, "gen_ai.output.type": "json",
        "gen_ai.conversation.id": "tale", "gen_ai.request.max_tokens": "4", "server.address": "127.0.0.1",
    }  # fmt: skip
    assert {key: about[key] for key in known} == known
    assert len(about["gen_ai.response.finish_reasons"]) == 2


def test_a_plain_completion_says_nothing_that_was_not_asked_for(worked: Any) -> None:
    name, about = worked("/v1/completions", {"prompt": "Once", "max_tokens": 4}, INFERENCE)
    assert name == "text_completion stories"
    assert about.keys() == always(INFERENCE) - {"gen_ai.request.stop_sequences"}
    assert about["gen_ai.response.finish_reasons"] == ["length"]
    assert about["gen_ai.usage.output_tokens"] == "4"
    _, found = worked("/v1/completions", {"prompt": "Once", "max_tokens": 4}, INFERENCE)
    assert found["gen_ai.usage.input_tokens"] == about["gen_ai.usage.input_tokens"]


def test_ollamas_stream_is_one(worked: Any) -> None:
    _, about = worked("/api/chat", {**CHAT, "options": {"num_predict": 3}}, INFERENCE)
    assert about["gen_ai.request.stream"] is True
    assert about["gen_ai.response.time_to_first_chunk"] > 0


def test_embedded_texts_are_an_operation_of_their_own(worked: Any) -> None:
    name, about = worked("/v1/embeddings", {"input": ["Once", "upon"]}, EMBEDDINGS)
    assert (name, about.keys()) == ("embeddings stories", always(EMBEDDINGS))
    assert int(about["gen_ai.usage.input_tokens"]) > 2


def test_an_answer_that_nobody_waits_for_ends_in_an_error(stories: graphml.Model) -> None:
    records: list[Any] = []
    options = ServerOptions(parallel=1, n_ctx=256, aliases=("stories",))
    with running(options, stories, listeners=[records.append]) as server:
        leave(server)
        assert server.at_rest()
    _, about = checked(list(spans_of(records[0], None, None)), INFERENCE)
    assert about["error.type"] == "cancelled"
    assert "gen_ai.response.finish_reasons" not in about


def leave(server: Running) -> None:
    """Read the first event of a long answer."""
    asked = {"prompt": "Once", "max_tokens": 200, "stream": True, "ignore_eos": True}
    with server.http.stream("POST", "/v1/completions", json=asked) as response:
        next(response.iter_lines())
