"""Which tools an answer may call, and its form, as each protocol says it; by clients that check types.

The clients' packages are imported by the process that runs these tests, not by all that collect them: 2 s.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from tests.server.running_server import Running

if TYPE_CHECKING:
    import anthropic
    import openai

USER: list[Any] = [{"role": "user", "content": "Once"}]
NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}
YES: dict[str, Any] = {"enum": ["yes"]}
NAMES = ("look", "stop", "wait")


@pytest.fixture(scope="module")
def gpt(server: Running) -> Iterator[openai.OpenAI]:
    import openai

    with openai.OpenAI(
        api_key="none", base_url=f"{server.address}/v1", max_retries=0, _strict_response_validation=True
    ) as client:
        yield client


@pytest.fixture(scope="module")
def claude(server: Running) -> Iterator[anthropic.Anthropic]:
    import anthropic

    with anthropic.Anthropic(
        api_key="none", base_url=server.address, max_retries=0, _strict_response_validation=True
    ) as client:
        yield client


def called(message: Any) -> list[str]:
    return [one.name for one in message.content if one.type == "tool_use"]


def test_only_allowed_tools_are_called(gpt: openai.OpenAI) -> None:
    import openai

    functions = [{"name": name, "parameters": NOTHING} for name in NAMES]
    tools: Any = [{"type": "function", "function": one} for one in functions]
    listed: Any = [{"type": "function", "function": {"name": "stop"}}]
    asked: dict[str, Any] = {"model": "any", "messages": USER, "tools": tools, "max_tokens": 60, "seed": 1}
    asked |= {"parallel_tool_calls": False}
    for mode in ("required", "auto"):
        choice = {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": listed}}
        found = gpt.chat.completions.create(**{**asked, "tool_choice": choice}).choices[0]
        calls = found.message.tool_calls or []
        assert {one.function.name for one in calls if one.type == "function"} <= {"stop"}
        assert mode == "auto" or calls
    for wrong in ([{"type": "function", "function": {"name": "fly"}}], "stop", [7]):
        choice = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": wrong}}
        with pytest.raises(openai.BadRequestError) as raised:
            gpt.chat.completions.create(**{**asked, "tool_choice": choice})
        assert raised.value.param == "tool_choice"
    flat: Any = [{"type": "function", **one} for one in functions]
    wait: Any = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "wait"}]}
    response = gpt.responses.create(
        model="any", input="Once", tools=flat, max_output_tokens=60, parallel_tool_calls=False,
        tool_choice=wait,
    )  # fmt: skip
    assert [one.name for one in response.output if one.type == "function_call"] == ["wait"]


def test_allowed_tools_count_once_and_required_ones_are_there(gpt: openai.OpenAI) -> None:
    import openai

    tools: Any = [{"type": "function", "function": {"name": name, "parameters": NOTHING}} for name in NAMES]
    asked: dict[str, Any] = {"model": "any", "messages": USER, "tools": tools, "max_tokens": 60, "seed": 1}
    choice: dict[str, Any] = {"type": "allowed_tools", "allowed_tools": {"mode": "required"}}
    choice["allowed_tools"]["tools"] = [tools[1], tools[1]]
    found = gpt.chat.completions.create(**asked, tool_choice=choice, parallel_tool_calls=False)
    assert [one.function.name for one in found.choices[0].message.tool_calls or ()] == ["stop"]
    choice["allowed_tools"]["tools"] = []
    with pytest.raises(openai.BadRequestError, match="required wants tools"):
        gpt.chat.completions.create(**asked, tool_choice=choice)
    choice["allowed_tools"]["mode"] = "auto"
    assert not gpt.chat.completions.create(**asked, tool_choice=choice).choices[0].message.tool_calls


def test_one_call_at_a_time_where_no_more_are_wanted(claude: anthropic.Anthropic) -> None:
    tools: Any = [{"name": name, "input_schema": {"type": "object"}} for name in NAMES[:2]]
    choice: dict[str, Any] = {"type": "any", "disable_parallel_tool_use": True}
    named: Any = {**choice, "type": "tool", "name": "look"}
    asked: dict[str, Any] = {"model": "any", "max_tokens": 120, "messages": USER, "tools": tools}
    plain = claude.messages.create(**{**asked, "tool_choice": choice})
    assert plain.stop_reason == "tool_use"
    assert len(called(plain)) == 1
    with claude.messages.stream(**asked, tool_choice=named) as stream:
        assert called(stream.get_final_message()) == ["look"]


def test_a_named_tool_is_called_once_on_each_protocol(
    gpt: openai.OpenAI, claude: anthropic.Anthropic
) -> None:
    functions: list[Any] = [{"name": name, "parameters": NOTHING} for name in NAMES[:2]]
    tools: Any = [{"type": "function", "function": one} for one in functions]
    flat: Any = [{"type": "function", "strict": None, **one} for one in functions]
    told: Any = [{"name": name, "input_schema": NOTHING} for name in NAMES[:2]]
    for _ in range(3):
        chat = gpt.chat.completions.create(
            model="any", messages=USER, tools=tools, max_tokens=120, temperature=2.0,
            tool_choice={"type": "function", "function": {"name": "stop"}},
        ).choices[0]  # fmt: skip
        made = [one.function.name for one in chat.message.tool_calls or () if one.type == "function"]
        assert (made, chat.finish_reason) == (["stop"], "tool_calls")
        response = gpt.responses.create(
            model="any", input="Once", tools=flat, max_output_tokens=120, temperature=2.0,
            tool_choice={"type": "function", "name": "stop"},
        )  # fmt: skip
        assert [one.name for one in response.output if one.type == "function_call"] == ["stop"]
        assert response.status == "completed"
        message = claude.messages.create(
            model="any", max_tokens=120, messages=USER, tools=told,
            tool_choice={"type": "tool", "name": "stop"},
        )  # fmt: skip
        assert called(message) == ["stop"]
        assert message.stop_reason == "tool_use"


def test_a_message_follows_its_schema(claude: anthropic.Anthropic, server: Running) -> None:
    asked: dict[str, Any] = {"model": "any", "max_tokens": 60, "messages": USER}
    form: Any = {"format": {"type": "json_schema", "schema": YES}}
    found = claude.messages.create(**asked, output_config=form)
    assert found.content[0].type == "text"
    assert json.loads(found.content[0].text) == "yes"
    for wrong in ({"format": "json"}, {"format": {"type": "json_schema", "schema": 3}}, {"effort": 3}):
        refused = server.post("/v1/messages", {**asked, "output_config": wrong})
        assert (refused.status_code, refused.json()["type"]) == (400, "error")


def test_both_packages_list_models(gpt: openai.OpenAI, claude: anthropic.Anthropic, server: Running) -> None:
    (one,), (other,) = gpt.models.list().data, claude.models.list().data
    assert one.id == other.id == other.display_name == "stories"
    assert claude.models.retrieve("stories").type == "model"
    meta: dict[str, Any] = httpx2.get(f"{server.address}/v1/models").json()["data"][0]["meta"]
    assert meta["vocab_type"] == 1  # its tokens are those of a sentencepiece model


def test_more_dimensions_than_there_are_are_refused(gpt: openai.OpenAI) -> None:
    import openai

    with pytest.raises(openai.BadRequestError) as raised:
        gpt.embeddings.create(model="any", input="Once", encoding_format="float", dimensions=10**6)
    assert raised.value.param == "dimensions"
    assert "wanted 1 to 64, the numbers of a row; got 1000000" in str(raised.value)
