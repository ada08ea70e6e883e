"""What llama-server has and the engine has not, of reasoning and of reuse, is refused by its name."""

from __future__ import annotations

from typing import Any

import pytest

from graphml.cli.serve import server_options
from graphml.errors import UsageError
from graphml.server.options.command_line import Parsed, parsed, with_variables
from graphml.server.protocols.conversations import _variables
from graphml.server.requests.request_fields import ChatCompletion
from tests.server.running_server import Running

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("reasoning_budget_tokens", 64),
        ("thinking_budget_tokens", 64),
        ("reasoning_budget_message", "Time is up."),
        ("reasoning_control", True),
        ("n_cache_reuse", 256),
    ],
)
def test_a_field_of_a_request_is_refused_by_its_name(server: Running, field: str, value: Any) -> None:
    refused = server.post("/v1/chat/completions", {**CHAT, field: value})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == field


def test_values_that_change_nothing_are_taken(server: Running) -> None:
    usual = {"reasoning_budget_tokens": -1, "reasoning_budget_message": "", "reasoning_control": False}
    assert server.post("/v1/chat/completions", {**CHAT, **usual, "n_cache_reuse": 0}).status_code == 200


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


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 400),
        ({"id": "chatcmpl-1", "action": "stop"}, 400),
        ({"id": "chatcmpl-1", "action": "reasoning_end"}, 501),
    ],
)
def test_control_of_a_running_answer_is_refused(server: Running, body: dict[str, str], status: int) -> None:
    assert server.post("/v1/chat/completions/control", body).status_code == status


@pytest.mark.parametrize(
    ("flag", "variable", "value"),
    [
        ("--reasoning-budget-message", "LLAMA_ARG_THINK_BUDGET_MESSAGE", "Time is up."),
        ("--cache-reuse", "LLAMA_ARG_CACHE_REUSE", "256"),
    ],
)
def test_a_flag_and_its_variable_are_refused(flag: str, variable: str, value: str) -> None:
    for command in (parsed([flag, value]), with_variables(Parsed(), {variable: value})):
        with pytest.raises(UsageError, match=f"{flag}: wanted"):
            server_options(command)


def test_flags_that_change_nothing_are_taken() -> None:
    server_options(parsed(["--reasoning-budget-message", "", "--cache-reuse", "0"]))
