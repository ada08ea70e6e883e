"""LangChain: chats, tools, each method of structured output, streams and embeddings, over OpenAI's APIs."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import BaseModel

from tests.server.clients.libraries import LEAVES_SOCKETS, library, run
from tests.server.clients.refusing_server import Refusing
from tests.server.clients.trips import (
    ASKED,
    CLOCK,
    ENOUGH,
    JSON,
    ROME,
    ROUNDS,
    TRIP,
    WEATHER,
    Trip,
    calls,
)
from tests.server.clients.wished_answers import Wishes
from tests.server.running_server import Running

pytestmark = [
    LEAVES_SOCKETS,
    # LangChain writes OpenAI's parsed completions, whose type says that there is no parsed value.
    pytest.mark.filterwarnings("ignore:Pydantic serializer warnings:UserWarning"),
]
TOOLS = [{"type": "function", "function": one} for one in (WEATHER, CLOCK)]


class Weather(BaseModel):
    """Look up the weather."""

    city: str
    unit: str


APIS: dict[str, Any] = {
    "chat": {},
    "responses": {"use_responses_api": True, "output_version": "responses/v1"},
}


def chat(base: str, **more: Any) -> Any:
    given = {"base_url": base, "api_key": "none", "model": "any", "temperature": 0, "max_tokens": 400, **more}
    return library("langchain_openai").ChatOpenAI(**given)


def test_chats_streams_and_embeddings(wished: Wishes, subtests: pytest.Subtests) -> None:
    langchain = library("langchain_openai")
    wished.say("It is Rome.")
    for name, api in APIS.items():
        with subtests.test(name):
            client = chat(wished.v1, **api)
            whole = client.invoke(ASKED)
            assert whole.text == "It is Rome."
            assert whole.usage_metadata["output_tokens"]
            parts = [one.text for one in client.stream(ASKED)]
            assert "".join(parts) == "It is Rome."
            assert len(parts) > 2
            assert run(client.ainvoke(ASKED)).text == "It is Rome."
            assert [one.text for one in client.batch([ASKED, ASKED])] == ["It is Rome."] * 2
    with subtests.test("embeddings"):
        embeddings = langchain.OpenAIEmbeddings(
            base_url=wished.v1, api_key="none", model="any", check_embedding_ctx_length=False
        )
        one, other = embeddings.embed_documents(["a dog", "a house"])
        assert len(one) == len(other) == len(embeddings.embed_query("a dog"))
        assert one != other


def test_each_method_of_structured_output(wished: Wishes, subtests: pytest.Subtests) -> None:
    library("langchain_openai")
    answers = {"json_schema": JSON, "json_mode": JSON, "function_calling": calls(("Trip", JSON))}
    for name, api in APIS.items():
        for method, answer in answers.items():
            for kind in (Trip, Trip.model_json_schema()) if method != "json_mode" else (Trip,):
                for strict in (None, True) if method != "json_mode" else (None,):
                    with subtests.test(f"{name}, {method}, {type(kind).__name__}, {strict}"):
                        wished.forget()
                        wished.say(answer)
                        made = chat(wished.v1, **api).with_structured_output(
                            kind, method=method, strict=strict
                        )
                        found = made.invoke(ASKED)
                        assert (found if kind is Trip else Trip.model_validate(found)) == TRIP
                        *_, last = made.stream(ASKED)
                        assert (last if kind is Trip else Trip.model_validate(last)) == TRIP


def test_tools_and_a_loop(wished: Wishes, subtests: pytest.Subtests) -> None:
    messages = library("langchain_core.messages")
    for name, api in APIS.items():
        with subtests.test(name):
            wished.forget()
            wished.say(*ROUNDS)
            client = chat(wished.v1, **api)
            bound = client.bind_tools(TOOLS)
            first = bound.invoke(ASKED)
            (call,) = first.tool_calls
            assert (call["name"], call["args"]) == ("weather", json.loads(ROME))
            told = [
                messages.HumanMessage(ASKED),
                first,
                messages.ToolMessage("sunny", tool_call_id=call["id"]),
            ]
            assert bound.invoke(told).text == "It is sunny in Rome."
            assert "Result of weather: sunny" in wished.prompts[-1]
            wished.forget()
            wished.say(calls(("weather", ROME), ("clock", "{}")))
            several = {"tool_choice": "any", "parallel_tool_calls": True}
            both = client.bind_tools(TOOLS, **several).invoke(ASKED)
            assert [one["name"] for one in both.tool_calls] == ["weather", "clock"]
            whole = None
            for part in client.bind_tools(TOOLS, **several, strict=True).stream(ASKED):
                whole = part if whole is None else whole + part
            assert [one["args"] for one in whole.tool_calls] == [json.loads(ROME), {}]
            for how in ({"tool_choice": "clock"}, {"tool_choice": "any", "parallel_tool_calls": False}):
                wished.forget()
                wished.say(calls(("clock", "{}")))
                one = client.bind_tools(TOOLS, **how).invoke(ASKED)
                assert [call["name"] for call in one.tool_calls] == ["clock"]


def test_tools_beside_a_schema(wished: Wishes, subtests: pytest.Subtests) -> None:
    library("langchain_openai")
    for name, api in APIS.items():
        for answer in (calls(("Weather", ROME)), JSON):
            with subtests.test(f"{name}, {answer[:12]}"):
                wished.forget()
                wished.say(answer)
                made = chat(wished.v1, **api).bind_tools([Weather], response_format=Trip, strict=True)
                found = made.invoke(ASKED)
                assert [one["name"] for one in found.tool_calls] == (
                    ["Weather"] if "Weather" in answer else []
                )
                assert found.additional_kwargs.get("parsed") == (None if "Weather" in answer else TRIP)


def test_retries_and_errors(refused: Refusing, wished: Wishes) -> None:
    openai = library("openai")
    wished.say("It is Rome.")
    refused.statuses = [503, 429]
    assert chat(refused.v1, max_retries=2).invoke(ASKED).text == "It is Rome."
    assert refused.n == 3
    refused.statuses = [429]
    with pytest.raises(openai.RateLimitError):
        chat(refused.v1, max_retries=0).invoke(ASKED)
    with pytest.raises(openai.BadRequestError, match="top_p"):
        chat(refused.v1, top_p=7).invoke(ASKED)
    fallback = chat(refused.v1, top_p=7).with_fallbacks([chat(refused.v1)])
    assert fallback.invoke(ASKED).text == "It is Rome."


@pytest.mark.model
def test_a_model_fills_a_nested_type(smollm: Running, subtests: pytest.Subtests) -> None:
    library("langchain_openai")
    for name, api in APIS.items():
        for method in ("json_schema", "function_calling"):
            with subtests.test(f"{name}, {method}"):
                made = chat(f"{smollm.address}/v1", max_tokens=ENOUGH, **api).with_structured_output(
                    Trip, method=method
                )
                assert isinstance(made.invoke(ASKED), Trip)
