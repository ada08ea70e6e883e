"""Reasoning that a request, the server or another request ends; reuse that llama-server alone has."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from graphml.cli.serve import server_options
from graphml.errors import UsageError
from graphml.server.options.command_line import Parsed, parsed, with_variables
from graphml.server.protocols.conversations import _variables
from graphml.server.requests.request_fields import ChatCompletion
from tests.server.agent_turns import Agent, Turn, agent_of
from tests.server.running_server import Running, running

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 200}
CONTROL = "/v1/chat/completions/control"
THOUGHT = "So long a thought that nobody waits for its end, " * 3


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    with agent_of("Qwen3.5-4B", tmp_path_factory.mktemp("tiny")) as opened:
        yield opened


def message(server: Running, **fields: Any) -> dict[str, Any]:
    reply = server.post("/v1/chat/completions", {**CHAT, **fields})
    assert reply.status_code == 200, reply.text
    said: dict[str, Any] = reply.json()["choices"][0]["message"]
    return said


@pytest.mark.parametrize("field", ["reasoning_budget_tokens", "thinking_budget_tokens"])
def test_a_request_limits_reasoning(agent: Agent, field: str) -> None:
    agent.play(Turn(THOUGHT, "The answer."))
    said = message(agent.server, **{field: 12, "reasoning_budget_message": " Time is up."})
    assert said["reasoning_content"] == THOUGHT[:12].strip() + " Time is up."
    assert message(agent.server, **{field: -1})["reasoning_content"] == THOUGHT.strip()


def test_anthropics_budget_is_one(agent: Agent) -> None:
    agent.play(Turn(THOUGHT, "The answer."))
    thinking = {"type": "enabled", "budget_tokens": 12}
    reply = agent.server.post("/v1/messages", {**CHAT, "thinking": thinking})
    assert reply.json()["content"][0]["thinking"] == THOUGHT[:12].strip()
    wrong = agent.server.post("/v1/messages", {**CHAT, "thinking": {**thinking, "budget_tokens": "12"}})
    assert wrong.status_code == 400


def test_a_schema_counts_behind_the_limit(agent: Agent) -> None:
    agent.play(Turn(THOUGHT, '{"a": true}'))
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    said = message(agent.server, response_format=form, reasoning_budget_tokens=5)
    assert said["reasoning_content"] == THOUGHT[:5].strip()
    assert json.loads(said["content"]).keys() == {"a"}


def test_a_mark_in_an_answer_is_text(agent: Agent) -> None:
    text = "The tag <think> opens it, and more than the budget follows."
    agent.play(Turn("Hm.", text))
    assert message(agent.server, thinking_budget_tokens=9)["content"] == text


@pytest.mark.parametrize("text", ["x" * 5000, "so </think> no", "<think>"])
def test_a_message_is_short_and_has_no_marks(agent: Agent, text: str) -> None:
    fields = {"reasoning_budget_tokens": 4, "reasoning_budget_message": text}
    refused = agent.server.post("/v1/chat/completions", {**CHAT, **fields})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "reasoning_budget_message"


def test_a_stream_is_limited_alike(agent: Agent) -> None:
    agent.play(Turn(THOUGHT, "The answer."))
    chunks = agent.server.events("/v1/chat/completions", {**CHAT, "reasoning_budget_tokens": 12})
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    said = "".join(delta.get("reasoning_content") or "" for delta in deltas)
    assert said == message(agent.server, reasoning_budget_tokens=12)["reasoning_content"]


def test_the_reasoning_of_a_stream_is_ended(agent: Agent) -> None:
    agent.play(Turn(THOUGHT * 20, "The answer."))
    server, reasoning, ended = agent.server, "", None
    body = {**CHAT, "max_tokens": 900, "reasoning_control": True, "stream": True}
    with server.http.stream("POST", "/v1/chat/completions", json=body) as response:
        for line in response.iter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line[6:])
            assert "choices" in chunk, chunk
            delta = chunk["choices"][0]["delta"] if chunk["choices"] else {}
            reasoning += delta.get("reasoning_content") or ""
            if len(reasoning) > 10 and ended is None:
                ended = server.post(CONTROL, {"id": chunk["id"], "action": "reasoning_end"}).json()
    assert ended == {"success": True}
    assert len(reasoning) < 850
    assert (THOUGHT * 20).startswith(reasoning.strip())


def test_what_cannot_be_ended_is_said(agent: Agent) -> None:
    agent.play(Turn(THOUGHT * 20, "The answer."))
    server, seen = agent.server, list[dict[str, Any]]()
    wanted = {"action": "reasoning_end"}
    with server.http.stream(
        "POST", "/v1/chat/completions", json={**CHAT, "max_tokens": 900, "stream": True}
    ) as response:
        for line in response.iter_lines():
            if line.startswith("data: {") and not seen:
                seen.append(server.post(CONTROL, {**wanted, "id": json.loads(line[6:])["id"]}).json())
    assert seen == [{"success": False, "message": "reasoning control not enabled for this completion"}]
    unknown = server.post(CONTROL, {**wanted, "id": "chatcmpl-1"})
    assert unknown.json() == {"success": False, "message": "no active completion for this id"}
    for body in ({}, {"id": "chatcmpl-1", "action": "stop"}):
        assert server.post(CONTROL, body).status_code == 400


def test_reuse_behind_a_changed_text_is_refused(server: Running) -> None:
    refused = server.post("/v1/chat/completions", {**CHAT, "n_cache_reuse": 256})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "n_cache_reuse"
    wrong = server.post("/v1/chat/completions", {**CHAT, "reasoning_budget_tokens": -2})
    assert wrong.json()["error"]["param"] == "reasoning_budget_tokens"


def test_fields_of_a_model_that_does_not_reason_change_nothing(server: Running) -> None:
    limits = {"reasoning_budget_tokens": 3, "reasoning_budget_message": "x", "reasoning_control": True}
    plain = message(server, seed=1, max_tokens=8)
    assert message(server, seed=1, max_tokens=8, **limits, n_cache_reuse=0) == plain


@pytest.mark.parametrize(
    ("fields", "thinks"),
    [
        ({}, True),
        ({"reasoning_budget_tokens": 0}, False),
        ({"thinking_budget_tokens": 0}, False),
        ({"reasoning_budget_tokens": -1, "thinking_budget_tokens": 0}, True),
    ],
)
def test_a_budget_of_nothing_is_no_reasoning(server: Running, fields: dict[str, int], thinks: bool) -> None:
    variables = _variables(server.service, ChatCompletion(messages=[], **fields))
    assert variables["enable_thinking"] is thinks


def test_a_server_limits_what_does_not_say() -> None:
    options = server_options(parsed(["--reasoning-budget", "9", "--reasoning-budget-message", "Stop."]))
    assert options.params.reasoning_budget == 9
    assert options.params.reasoning_budget_message == "Stop."
    none = server_options(parsed(["--reasoning-budget", "0"]))
    assert (none.reasoning, none.params.reasoning_budget) == ("off", 0)
    by_variable = with_variables(Parsed(), {"LLAMA_ARG_THINK_BUDGET": "9"})
    assert server_options(by_variable).params.reasoning_budget == 9


def test_a_limit_of_the_server_counts_in_conversations_alone(agent: Agent) -> None:
    service = agent.server.service
    limited = replace(service.options, params=replace(service.options.params, reasoning_budget=7))
    agent.play(Turn(THOUGHT, "The answer."))
    with running(limited, service.model) as server:
        assert message(server)["reasoning_content"] == THOUGHT[:7].strip()
        assert message(server, reasoning_budget_tokens=9)["reasoning_content"] == THOUGHT[:9].strip()
        assert (
            server.post("/completion", {"prompt": "<|im_start|>assistant\n", "n_predict": 3}).status_code
            == 200
        )


@pytest.mark.parametrize("by", ["flag", "variable"])
def test_a_flag_and_its_variable_are_refused(by: str) -> None:
    stated = with_variables(Parsed(), {"LLAMA_ARG_CACHE_REUSE": "256"})
    command = parsed(["--cache-reuse", "256"]) if by == "flag" else stated
    with pytest.raises(UsageError, match="--cache-reuse: wanted"):
        server_options(command)
    server_options(parsed(["--cache-reuse", "0"]))
