"""smolagents: agents that call tools or write code, structured output and streams, over Chat Completions."""

from __future__ import annotations

import json
from typing import Any, Literal

import pytest

from tests.server.clients.libraries import LEAVES_SOCKETS, library
from tests.server.clients.refusing_server import Refusing
from tests.server.clients.trips import ASKED, ENOUGH, JSON, ROME, TRIP, Trip, calls
from tests.server.clients.wished_answers import Wishes
from tests.server.running_server import Running

pytestmark = LEAVES_SOCKETS
PACK = {"type": "function", "function": {"name": "pack"}}
FINAL = calls(("final_answer", '{"answer": "It is sunny in Rome."}'))
CODE = "Thought: I look.\n<code>\nprint(weather(city='Rome', unit='C'))\n</code>"
ENDED = "Thought: It is there.\n<code>\nfinal_answer('It is sunny in Rome.')\n</code>"


def model(base: str, **more: Any) -> Any:
    library("smolagents")
    given = {"api_base": base, "api_key": "none", "temperature": 0, "max_tokens": 400, **more}
    return library("smolagents").OpenAIModel("any", **given)


def weather() -> Any:
    tool = library("smolagents").tool

    @tool
    def weather(city: str, unit: str) -> str:
        """Look up the weather.

        Args:
            city: Where.
            unit: C or F.
        """
        return f"sunny in {city}"

    return weather


def test_chats_streams_and_structured_output(wished: Wishes, subtests: pytest.Subtests) -> None:
    smolagents = library("smolagents")
    asked = [smolagents.ChatMessage(role="user", content=[{"type": "text", "text": ASKED}])]
    with subtests.test("text"):
        wished.say("It is Rome.")
        assert model(wished.v1).generate(asked).content == "It is Rome."
        parts = [one.content or "" for one in model(wished.v1).generate_stream(asked)]
        assert "".join(parts) == "It is Rome."
        assert sum(map(bool, parts)) > 2
    with subtests.test("stop sequences"):
        assert model(wished.v1).generate(asked, stop_sequences=[" Rome"]).content == "It is"
    with subtests.test("schema"):
        wished.forget()
        wished.say(JSON)
        schema = {"name": "trip", "strict": True, "schema": Trip.model_json_schema()}
        form = {"type": "json_schema", "json_schema": schema}
        found = model(wished.v1).generate(asked, response_format=form)
        assert Trip.model_validate_json(found.content) == TRIP


def test_an_agent_that_calls_tools(wished: Wishes, subtests: pytest.Subtests) -> None:
    smolagents = library("smolagents")
    for streams in (False, True):
        with subtests.test(f"streams: {streams}"):
            wished.forget()
            wished.say(calls(("weather", ROME)), FINAL)
            agent = smolagents.ToolCallingAgent(
                [weather()], model(wished.v1), max_steps=3, verbosity_level=0, stream_outputs=streams
            )
            assert agent.run(ASKED) == "It is sunny in Rome."
            assert "sunny in Rome" in wished.prompts[-1]
            called = [one.tool_calls[0] for one in agent.memory.steps if getattr(one, "tool_calls", None)]
            assert [one.name for one in called] == ["weather", "final_answer"]
            assert called[0].arguments == json.loads(ROME)


def test_an_agent_that_writes_code(wished: Wishes, subtests: pytest.Subtests) -> None:
    smolagents = library("smolagents")
    structured = [
        json.dumps({"thought": "I look.", "code": "print(weather(city='Rome', unit='C'))"}),
        json.dumps({"thought": "It is there.", "code": "final_answer('It is sunny in Rome.')"}),
    ]
    for more, answers in (({}, [CODE, ENDED]), ({"use_structured_outputs_internally": True}, structured)):
        with subtests.test(str(more)):
            wished.forget()
            wished.say(*answers)
            agent = smolagents.CodeAgent(
                [weather()], model(wished.v1), max_steps=3, verbosity_level=0, **more
            )
            assert agent.run(ASKED) == "It is sunny in Rome."
            assert "sunny in Rome" in wished.prompts[-1]


def test_retries_and_errors(refused: Refusing, wished: Wishes) -> None:
    smolagents, openai = library("smolagents"), library("openai")
    asked = [smolagents.ChatMessage(role="user", content=[{"type": "text", "text": ASKED}])]
    wished.say("It is Rome.")
    refused.statuses = [503, 429]
    assert model(refused.v1).generate(asked).content == "It is Rome."
    assert refused.n == 3
    with pytest.raises(openai.BadRequestError, match="top_p"):
        model(refused.v1, top_p=7).generate(asked)


@pytest.mark.model
def test_a_model_calls_a_tool_and_fills_a_nested_type(smollm: Running) -> None:
    smolagents = library("smolagents")
    asked = [smolagents.ChatMessage(role="user", content=[{"type": "text", "text": ASKED}])]

    tool = smolagents.tool

    @tool
    def pack(pace: Literal["slow", "fast"]) -> str:
        """Pack for a trip.

        Args:
            pace: How.
        """
        return pace

    served = model(f"{smollm.address}/v1", max_tokens=ENOUGH)
    (call,) = served.generate(asked, tools_to_call_from=[pack], tool_choice=PACK).tool_calls
    assert call.function.name == "pack"
    form = {"type": "json_schema", "json_schema": {"name": "trip", "schema": Trip.model_json_schema()}}
    assert Trip.model_validate_json(served.generate(asked, response_format=form).content)
