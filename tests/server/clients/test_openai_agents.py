"""OpenAI's Agents SDK: loops of tools, types of output, hand-offs and streams, over both APIs of OpenAI."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.server.clients.libraries import LEAVES_SOCKETS, library, run
from tests.server.clients.refusing_server import Refusing
from tests.server.clients.trips import ASKED, JSON, ROME, TRIP, Trip, calls
from tests.server.clients.wished_answers import Wishes
from tests.server.running_server import Running

pytestmark = LEAVES_SOCKETS


def models(base: str, retries: int = 2) -> Iterator[tuple[str, Any]]:
    agents = library("agents")
    client = library("openai").AsyncOpenAI(base_url=base, api_key="none", max_retries=retries)
    yield "chat", agents.OpenAIChatCompletionsModel("any", client)
    yield "responses", agents.OpenAIResponsesModel("any", client)


def agent(model: Any, settings: dict[str, Any] | None = None, **more: Any) -> Any:
    agents = library("agents")
    stated = agents.ModelSettings(temperature=0, max_tokens=400, **(settings or {}))
    return agents.Agent(name="guide", instructions="Be kind.", model=model, model_settings=stated, **more)


def weather() -> Any:
    @library("agents").function_tool
    def weather(city: str, unit: str = "C") -> str:
        """Look up the weather."""
        return f"sunny in {city}"

    return weather


def ended(agent: Any, **more: Any) -> Any:
    return run(library("agents").Runner.run(agent, ASKED, **more)).final_output


def test_text_and_streams(wished: Wishes, subtests: pytest.Subtests) -> None:
    agents = library("agents")
    wished.say("It is Rome.")
    for name, model in models(wished.v1):
        with subtests.test(name):
            assert ended(agent(model)) == "It is Rome."

            async def parts(model: Any = model) -> list[str]:
                stream = agents.Runner.run_streamed(agent(model), ASKED).stream_events()
                data = [one.data async for one in stream if one.type == "raw_response_event"]
                return [one.delta for one in data if one.type == "response.output_text.delta"]

            found = run(parts())
            assert "".join(found) == "It is Rome."
            assert len(found) > 2


def test_types_of_output(wished: Wishes, subtests: pytest.Subtests) -> None:
    agents = library("agents")
    kinds = {"strict": Trip, "not strict": agents.AgentOutputSchema(Trip, strict_json_schema=False)}
    for name, model in models(wished.v1):
        for kind, output in kinds.items():
            with subtests.test(f"{name}, {kind}"):
                wished.forget()
                wished.say(JSON)
                assert ended(agent(model, output_type=output)) == TRIP


def test_tools_in_a_loop_beside_each_type_of_output(wished: Wishes, subtests: pytest.Subtests) -> None:
    agents = library("agents")
    called = calls(("weather", ROME))
    for name, model in models(wished.v1):
        for kind, last in ((None, "Sunny."), (Trip, JSON)):
            for streamed in (False, True):
                with subtests.test(f"{name}, {kind}, {streamed}"):
                    wished.forget()
                    wished.say(called, last)
                    one = agent(model, output_type=kind, tools=[weather()])

                    async def stream(one: Any = one) -> Any:
                        result = agents.Runner.run_streamed(one, ASKED)
                        kinds = [event.type async for event in result.stream_events()]
                        assert kinds.count("run_item_stream_event") == 3  # a call, its result, the answer
                        return result.final_output

                    found = run(stream()) if streamed else ended(one)
                    assert found == ("Sunny." if kind is None else TRIP)
                    assert "Result of weather: sunny in Rome" in wished.prompts[-1]


def test_choices_of_tools(wished: Wishes, subtests: pytest.Subtests) -> None:
    for name, model in models(wished.v1):
        for choice, called in (
            ("required", calls(("weather", ROME))),
            ("weather", calls(("weather", ROME))),
        ):
            for kind, last in ((None, "Sunny."), (Trip, JSON)):
                with subtests.test(f"{name}, {choice}, {kind}"):
                    wished.forget()
                    wished.say(called, last)
                    one = agent(model, {"tool_choice": choice}, tools=[weather()], output_type=kind)
                    assert ended(one) == ("Sunny." if kind is None else TRIP)
        with subtests.test(f"{name}, one at a time"):
            wished.forget()
            wished.say(calls(("weather", ROME)), "Sunny.")
            assert ended(agent(model, {"parallel_tool_calls": False}, tools=[weather()])) == "Sunny."


def test_hand_offs(wished: Wishes, subtests: pytest.Subtests) -> None:
    for name, model in models(wished.v1):
        with subtests.test(name):
            wished.forget()
            wished.say(calls(("transfer_to_guide", "{}")), JSON)
            guide = agent(model, output_type=Trip)
            first = agent(model, handoffs=[guide]).clone(name="desk")
            assert ended(first) == TRIP


def test_retries_and_errors(refused: Refusing, wished: Wishes, subtests: pytest.Subtests) -> None:
    openai = library("openai")
    wished.say("It is Rome.")
    for name, model in models(refused.v1):
        with subtests.test(name):
            refused.statuses, refused.n = [503, 429], 0
            assert ended(agent(model)) == "It is Rome."
            assert refused.n == 3
            with pytest.raises(openai.BadRequestError, match="top_p"):
                ended(agent(model, {"top_p": 7.0}))


@pytest.mark.model
def test_a_model_uses_tools_beside_a_type_of_output(smollm: Running, subtests: pytest.Subtests) -> None:
    agents = library("agents")
    for name, model in models(f"{smollm.address}/v1"):
        with subtests.test(name):
            one = agent(model, {"tool_choice": "weather"}, tools=[weather()], output_type=Trip)
            try:
                assert isinstance(ended(one, max_turns=3), Trip)
            except agents.MaxTurnsExceeded:  # the model's choice: each turn was a whole call
                continue
