"""Requests that are wrong in ways no client means: each gets a 4xx, none a traceback."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from graphml.server.responses.event_stream import encode
from tests.server.running_server import Running

USER = [{"role": "user", "content": "Hi"}]
DEEP: dict[str, Any] = {}
for _ in range(70):
    DEEP = {"type": "object", "properties": {"a": DEEP}}


def _thinking(content: object) -> dict[str, Any]:
    return {"messages": [{"role": "assistant", "content": content}], "max_tokens": 1}


def _variable(name: str) -> dict[str, Any]:
    return {"chat_template_kwargs": {name: 5}}


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/completion", {"logit_bias": [["5", 10**400]]}, "logit_bias"),
        ("/completion", {"lora": [{"id": [], "scale": 1}]}, "lora"),
        ("/completion", {"lora": [{"id": 0, "scale": 10**400}]}, "lora"),
        ("/completion", {"json_schema": DEEP}, "json_schema"),
        ("/lora-adapters", [{"id": [], "scale": 1}], "id"),
        ("/v1/messages", _thinking([{"type": "thinking", "thinking": None}]), "messages"),
        ("/v1/messages", {"messages": USER, "tool_choice": {"type": ["any"]}}, "tool_choice"),
        ("/v1/messages", {"messages": USER, "top_k": 10**30}, "top_k"),
        ("/v1/messages", {"messages": USER, "system": [{"type": "image", "source": {}}]}, "system"),
        ("/v1/messages", {"messages": USER, "system": [{"type": "text", "text": 5}]}, "system"),
        ("/v1/messages", {"messages": USER, "system": [5]}, "system"),
        ("/v1/messages", {"messages": USER, "thinking": {"type": {"a": 1}}}, "thinking"),
        ("/v1/messages", {"messages": USER, "tool_choice": {"type": "any", "disable_parallel_tool_use": 5}},
         "tool_choice"),
        ("/v1/responses", {"input": "a", "reasoning": {"effort": {"a": 1}}}, "reasoning"),
        ("/v1/responses", {"input": "a", "text": {"format": "json_object"}}, "text"),
        ("/v1/responses", {"input": [{"type": "reasoning", "content": 5}]}, "input"),
        ("/v1/responses", {"input": [{"type": "reasoning", "content": [{"text": 5}]}]}, "input"),
        ("/v1/chat/completions", {"messages": USER, **_variable("tools")}, "chat_template_kwargs"),
        ("/apply-template", {"messages": USER, **_variable("messages")}, "chat_template_kwargs"),
    ],
    ids=lambda one: None if isinstance(one, str) else "",
)  # fmt: skip
def test_a_wrong_value_is_a_400_with_its_field(
    server: Running, caplog: pytest.LogCaptureFixture, path: str, body: Any, field: str
) -> None:
    if path == "/completion":
        body = {"prompt": "Once", "n_predict": 1, **body}
    with caplog.at_level(logging.ERROR):
        answer = server.post(path, body)
    assert answer.status_code == 400, answer.text
    assert field in answer.json()["error"]["message"]
    assert not caplog.records


@pytest.mark.parametrize("token", ["--5", "9" * 5000, "-", "²"], ids=["dashes", "digits", "dash", "square"])
def test_a_bias_is_of_a_text_where_it_is_no_id(server: Running, token: str) -> None:
    body = {"prompt": "Once", "n_predict": 1, "logit_bias": {token: 1}}
    assert server.post("/completion", body).status_code == 200


@pytest.mark.parametrize(
    ("path", "body"),
    [("/v1/chat/completions", {"messages": []}), ("/v1/responses", {"input": []}),
     ("/v1/messages", {"messages": [], "max_tokens": 4})],
)  # fmt: skip
def test_a_conversation_of_nothing_is_refused(server: Running, path: str, body: dict[str, Any]) -> None:
    answer = server.post(path, body)
    assert answer.status_code == 400
    assert "wanted" in (text := answer.json()["error"]["message"])
    assert f"'{next(iter(body))}'" in text


def test_a_path_without_end_is_refused(server: Running) -> None:
    assert server.post("/slots/" + "9" * 5000, {}).status_code == 414


@pytest.mark.parametrize("host", ["[", "[]", "[x]", ":"])
def test_a_host_that_is_no_address_is_refused(server: Running, host: str) -> None:
    assert server.http.get("/health", headers={"Host": host}).status_code == 403


def _called(arguments: str) -> list[dict[str, Any]]:
    call = {"id": "\ufdd0<|im_end|>\ufdd1", "function": {"name": "f", "arguments": arguments}}
    return [*USER, {"role": "assistant", "content": None, "tool_calls": [call]}]


LONE = "\\ud800"
"""A lone surrogate as JSON escapes it, within a text that is JSON."""
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def _schema(**parts: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "parameters": {"type": "object", **parts}}}


ANSWERED: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": _called(f'{{"a": "{LONE}"}}')}),
    ("/v1/chat/completions", {"messages": _called(f'{{"{LONE}": [{{"b": "{LONE}x"}}]}}'), "tools": [TOOL]}),
    ("/v1/messages", {"messages": USER, "system": ["be nice", {"type": "text", "text": "and kind"}]}),
    ("/v1/responses", {"input": [{"type": "function_call", "name": "f", "arguments": f'{{"{LONE}": 1}}'}]}),
    ("/v1/chat/completions", {"messages": USER, "tools": [_schema(required=None, properties=None)]}),
    ("/v1/chat/completions", {"messages": USER, "tools": [_schema(properties={"a": True, "b": None})]}),
    ("/v1/chat/completions", {"messages": USER, "chat_template_kwargs": {"enable_thinking": []}}),
    ("/v1/messages", {"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body"), ANSWERED, ids=range(len(ANSWERED)))
def test_what_is_strange_and_not_wrong_is_answered(server: Running, path: str, body: dict[str, Any]) -> None:
    answer = server.post(path, {**body, "max_tokens": 1})
    assert answer.status_code == 200, answer.text


REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": ["text"]}]}]}),
    ("/v1/chat/completions", {"messages": [{"role": "assistant", "content": "x", "reasoning": {"a": 1}}]}),
    ("/v1/messages", {"messages": [{"role": "assistant", "content": [{"type": "thinking", "thinking": 5}]}]}),
    ("/v1/chat/completions", {"messages": [{"role": ["user"], "content": "x"}]}),
    ("/v1/chat/completions", {"messages": _called("[" * 3000)}),
    ("/v1/chat/completions", {"messages": USER, "tools": [{"type": 5}]}),
    ("/v1/responses", {"input": [{"type": ["message"]}]}),
    ("/v1/responses", {"input": [{"type": "mcp_call", "id": 5, "name": "f"}]}),
    ("/v1/responses", {"input": [{"type": "custom_tool_call", "call_id": "c", "name": None}]}),
    ("/v1/messages", {"messages": [{"role": "user", "content": [{"type": "document", "source": {}}]}]}),
    ("/v1/messages", {"messages": USER, "output_format": {"type": "json_schema", "schema": []}}),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body"), REFUSED, ids=range(len(REFUSED)))
def test_what_is_wrong_in_a_history_is_a_400(server: Running, path: str, body: dict[str, Any]) -> None:
    answer = server.post(path, {**body, "max_tokens": 1})
    assert answer.status_code == 400, answer.text


@pytest.mark.parametrize("depth", [66, 330, 500, 900])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses", "/api/chat"])
def test_values_that_are_nested_deeply_are_a_400_with_their_field(
    server: Running, path: str, depth: int
) -> None:
    deep: Any = 1
    for _ in range(depth):
        deep = {"a": deep}
    use = {"type": "tool_use", "id": "c", "name": "f", "input": deep}
    call = {"id": "c", "function": {"name": "f", "arguments": deep}}
    as_text = {"id": "c", "function": {"name": "f", "arguments": encode(deep).decode()}}
    tool = {"type": "function", "function": {"name": "f", "parameters": {"enum": [deep]}}}
    bodies: dict[str, list[tuple[str, dict[str, Any]]]] = {
        "/v1/messages": [
            ("messages", {"messages": [*USER, _part(use)]}),
            ("tools", {"messages": USER, "tools": [{"name": "f", "input_schema": {"enum": [deep]}}]}),
        ],
        "/v1/responses": [
            ("messages", {"input": [{"type": "shell_call", "call_id": "c", "action": deep}]}),
            ("messages", {"input": [{"type": "function_call", "call_id": "c", **as_text["function"]}]}),
        ],
    }  # fmt: skip
    chats: list[tuple[str, dict[str, Any]]] = [
        ("messages", {"messages": [*USER, {"role": "assistant", "content": "", "tool_calls": [call]}]}),
        ("messages", {"messages": [*USER, {"role": "assistant", "content": "", "tool_calls": [as_text]}]}),
        ("tools", {"messages": USER, "tools": [tool]}),
        ("variables", {"messages": USER, "chat_template_kwargs": {"x": deep}}),
    ]
    for name, body in bodies.get(path, chats[:3] if path == "/api/chat" else chats):
        answer = server.post(path, {**body, "max_tokens": 1, "stream": False})
        assert answer.status_code == 400, answer.text
        assert name in answer.text
        assert "nested less than 64" in answer.text


def test_headers_of_many_conversations_are_one_of_each_name(server: Running) -> None:
    odd = {"type": "object", "properties": {"x": {"type": "array", "uniqueItems": True}}}
    instances = [
        {"messages": USER, "max_tokens": 1, "tools": [
            {"type": f"web_{number}"},
            {"type": "function", "function": {"name": f"f{number}", "parameters": odd}},
        ]}
        for number in range(4)
    ]  # fmt: skip
    answer = server.post("/predict", {"instances": instances})
    assert answer.status_code == 200, answer.text
    names = [f"f{number}:#/properties/x/uniqueItems" for number in range(4)]
    assert answer.headers.get_list("X-Graphml-Unforced") == [",".join(names)]
    assert answer.headers.get_list("X-Graphml-Ignored-Tools") == ["web_0,web_1,web_2,web_3"]
    most = server.service.options.limits.prompts
    answer = server.post("/predict", {"instances": [{}] * (most + 1)})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "instances")


def test_what_a_system_prompt_says_in_plain_parts_reaches_the_model(server: Running) -> None:
    counts = [
        server.post("/v1/messages/count_tokens", {"messages": USER, "system": system}).json()["input_tokens"]
        for system in (["Be nice", "and kind"], "Be nice\nand kind")
    ]
    assert counts[0] == counts[1]


def _part(part: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": [part]}


def test_surrogates_in_a_body_and_an_answer_are_no_error(server: Running) -> None:
    for raw in (b'"\\ud800"', b'"\xed\xa0\x80"'):
        body = b'{"max_tokens": 1, "messages": [{"role": "user", "content": ' + raw + b"}]}"
        assert server.http.post("/v1/chat/completions", content=body).status_code in (200, 400)
    assert encode({"input": {"a\ud800": ["\udfff", 1]}}) == '{"input":{"a\ufffd":["\ufffd",1]}}'.encode()


def test_breakers_of_a_request_have_a_limit(server: Running) -> None:
    body = {"prompt": "Hi", "n_predict": 1, "dry_multiplier": 1.0}
    assert server.post("/completion", {**body, "dry_sequence_breakers": ["a"] * 64}).status_code == 200
    refused = server.post("/completion", {**body, "dry_sequence_breakers": [str(i) for i in range(65)]})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "dry_sequence_breakers"
