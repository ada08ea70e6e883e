"""LiteLLM: chats, Responses and Anthropic's messages, as a library that routes to all of them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.server.clients.libraries import LEAVES_SOCKETS, LITELLMS_TYPES, library, run
from tests.server.clients.refusing_server import Refusing
from tests.server.clients.trips import (
    CLOCK,
    ENOUGH,
    JSON,
    MESSAGES,
    ROME,
    ROUNDS,
    TRIP,
    WEATHER,
    Trip,
    calls,
)
from tests.server.clients.wished_answers import Wishes
from tests.server.running_server import Running

pytestmark = [LEAVES_SOCKETS, LITELLMS_TYPES]
TOOLS = [{"type": "function", "function": one} for one in (WEATHER, CLOCK)]
OPENAI, ANTHROPIC = "openai/any", "anthropic/any"


def ways(wished: Wishes) -> list[dict[str, Any]]:
    """The chats that LiteLLM makes requests of either protocol of."""
    more = {"api_key": "none", "max_tokens": 300, "temperature": 0, "num_retries": 0}
    return [
        {"model": OPENAI, "api_base": wished.v1, **more},
        {"model": ANTHROPIC, "api_base": wished.address, **more},
    ]


def named(message: Any) -> list[tuple[str, Any]]:
    return [(one.function.name, json.loads(one.function.arguments)) for one in message.tool_calls or ()]


def test_chats_and_streams(wished: Wishes, subtests: pytest.Subtests) -> None:
    litellm = library("litellm")
    for how in ways(wished):
        with subtests.test(how["model"]):
            wished.say("It is Rome.")
            whole = litellm.completion(messages=MESSAGES, **how)
            assert whole.choices[0].message.content == "It is Rome."
            assert whole.usage.completion_tokens
            parts = list(litellm.completion(messages=MESSAGES, stream=True, **how))
            text = [one.choices[0].delta.content or "" for one in parts]
            assert "".join(text) == "It is Rome."
            assert sum(map(bool, text)) > 2
            assert litellm.stream_chunk_builder(parts).choices[0].finish_reason == "stop"

            async def asked(how: dict[str, Any] = how) -> Any:
                return await litellm.acompletion(messages=MESSAGES, **how)

            assert run(asked()).choices[0].message.content == "It is Rome."


def test_structured_output(wished: Wishes, subtests: pytest.Subtests) -> None:
    litellm = library("litellm")
    schema = {"name": "trip", "strict": True, "schema": Trip.model_json_schema()}
    forms: list[Any] = [Trip, {"type": "json_schema", "json_schema": schema}, {"type": "json_object"}]
    for how in ways(wished):
        for form in forms:
            with subtests.test(f"{how['model']}, {form}"):
                wished.forget()
                by_tool = how["model"].startswith("anthropic") and form != {"type": "json_object"}
                wished.say(calls(("json_tool_call", JSON)) if by_tool else JSON)
                found = litellm.completion(messages=MESSAGES, response_format=form, **how)
                assert Trip.model_validate_json(found.choices[0].message.content) == TRIP


def test_tools_and_a_loop(wished: Wishes, subtests: pytest.Subtests) -> None:
    litellm = library("litellm")
    for how in ways(wished):
        with subtests.test(how["model"]):
            wished.forget()
            wished.say(*ROUNDS)
            first = litellm.completion(messages=MESSAGES, tools=TOOLS, **how).choices[0]
            assert first.finish_reason == "tool_calls"
            assert named(first.message) == [("weather", json.loads(ROME))]
            told = [*MESSAGES, first.message.model_dump(exclude_none=True)]
            told += [{"role": "tool", "tool_call_id": first.message.tool_calls[0].id, "content": "sunny"}]
            last = litellm.completion(messages=told, tools=TOOLS, **how).choices[0]
            assert last.message.content == "It is sunny in Rome."
            assert "Result of weather: sunny" in wished.prompts[-1]
            wished.forget()
            wished.say(calls(("weather", ROME), ("clock", "{}")))
            several = {"tool_choice": "required", "parallel_tool_calls": True}
            both = litellm.completion(messages=MESSAGES, tools=TOOLS, **several, **how)
            assert [name for name, _ in named(both.choices[0].message)] == ["weather", "clock"]
            wished.forget()
            wished.say(calls(("clock", "{}")))
            choice = {"type": "function", "function": {"name": "clock"}}
            one = litellm.completion(messages=MESSAGES, tools=TOOLS, tool_choice=choice, **how)
            assert named(one.choices[0].message) == [("clock", {})]
            wished.forget()
            wished.say(calls(("weather", ROME)))
            parts = litellm.completion(messages=MESSAGES, tools=TOOLS, stream=True, **how)
            built = litellm.stream_chunk_builder(list(parts)).choices[0]
            assert named(built.message) == [("weather", json.loads(ROME))]


def test_responses_messages_and_embeddings(wished: Wishes, subtests: pytest.Subtests) -> None:
    litellm = library("litellm")
    openai = {"model": OPENAI, "api_base": wished.v1, "api_key": "none"}
    flat = [{"type": "function", **WEATHER}]
    with subtests.test("responses"):
        wished.say("It is Rome.")
        found = litellm.responses(input="Where?", max_output_tokens=100, **openai)
        assert found.output[0].content[0].text == "It is Rome."
        events = list(litellm.responses(input="Where?", max_output_tokens=100, stream=True, **openai))
        assert (
            "".join(one.delta for one in events if one.type == "response.output_text.delta") == "It is Rome."
        )
    with subtests.test("responses with tools and a form"):
        for answer, kind in ((calls(("weather", ROME)), "function_call"), (JSON, "message")):
            wished.forget()
            wished.say(answer)
            found = litellm.responses(
                input="Where?", tools=flat, text_format=Trip, max_output_tokens=300, **openai
            )
            assert [one.type for one in found.output] == [kind]
    with subtests.test("messages"):
        wished.forget()
        wished.say("It is Rome.")
        how = {"model": ANTHROPIC, "api_base": wished.address, "api_key": "none", "max_tokens": 100}
        found = run(litellm.anthropic.messages.acreate(messages=MESSAGES, **how))
        assert found["content"][0]["text"] == "It is Rome."
    with subtests.test("embeddings"):
        found = litellm.embedding(input=["a dog", "a house"], **openai)
        one, other = (row["embedding"] for row in found.data)
        assert len(one) == len(other)
        assert one != other


def test_retries_and_errors(refused: Refusing, wished: Wishes, subtests: pytest.Subtests) -> None:
    litellm = library("litellm")
    wished.say("It is Rome.")
    for model, base in ((OPENAI, refused.v1), (ANTHROPIC, refused.address)):
        how = {"model": model, "api_base": base, "api_key": "none", "max_tokens": 100}
        with subtests.test(model):
            refused.statuses, refused.n = [503, 429], 0
            found = litellm.completion(messages=MESSAGES, num_retries=2, **how)
            assert found.choices[0].message.content == "It is Rome."
            assert refused.n == 3
            refused.statuses = [429]
            with pytest.raises(litellm.RateLimitError):
                litellm.completion(messages=MESSAGES, num_retries=0, max_retries=0, **how)
            with pytest.raises(litellm.BadRequestError, match="top_p"):
                litellm.completion(messages=MESSAGES, top_p=7, **how)
            with pytest.raises(litellm.ContextWindowExceededError):
                litellm.completion(messages=[{"role": "user", "content": "word " * 9000}], **how)


@pytest.mark.model
def test_a_model_fills_a_nested_type(smollm: Running) -> None:
    litellm = library("litellm")
    found = litellm.completion(
        model=OPENAI, api_base=f"{smollm.address}/v1", api_key="none", messages=MESSAGES, temperature=0,
        max_tokens=ENOUGH, response_format=Trip,
    )  # fmt: skip
    assert Trip.model_validate_json(found.choices[0].message.content)
