"""Pydantic AI: each form of output, tools and streams, over Chat Completions, Responses and Messages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.server.clients.libraries import LEAVES_SOCKETS, library, run
from tests.server.clients.refusing_server import Refusing
from tests.server.clients.trips import ASKED, JSON, TRIP, Trip, calls
from tests.server.clients.wished_answers import Wishes
from tests.server.running_server import Running

pytestmark = LEAVES_SOCKETS


def models(address: str) -> Iterator[tuple[str, Any]]:
    """A model of each protocol."""
    openai, claude = library("pydantic_ai.models.openai"), library("pydantic_ai.models.anthropic")
    over_openai = library("pydantic_ai.providers.openai").OpenAIProvider(
        openai_client=library("openai").AsyncOpenAI(base_url=f"{address}/v1", api_key="none", max_retries=2)
    )
    over_anthropic = library("pydantic_ai.providers.anthropic").AnthropicProvider(
        anthropic_client=library("anthropic").AsyncAnthropic(base_url=address, api_key="none", max_retries=2)
    )
    yield "chat", openai.OpenAIChatModel("any", provider=over_openai)
    yield "responses", openai.OpenAIResponsesModel("any", provider=over_openai)
    profiles = library("pydantic_ai.profiles.anthropic")  # of a name that it does not know
    profile = profiles.AnthropicModelProfile(supports_json_schema_output=True)
    yield "messages", claude.AnthropicModel("any", provider=over_anthropic, profile=profile)


SETTINGS: Any = {"max_tokens": 400, "temperature": 0}


def weather(city: str, unit: str) -> str:
    """Look up the weather."""
    return f"sunny in {city}"


def test_text_and_streams(wished: Wishes, subtests: pytest.Subtests) -> None:
    ai = library("pydantic_ai")
    wished.say("It is Rome.")
    for name in ("chat", "responses", "messages"):
        with subtests.test(name):

            async def asked(name: str = name) -> tuple[str, list[str]]:
                agent = ai.Agent(dict(models(wished.address))[name], model_settings=SETTINGS)
                whole = (await agent.run(ASKED)).output
                async with agent.run_stream(ASKED) as stream:
                    return whole, [one async for one in stream.stream_text(delta=True, debounce_by=None)]

            whole, parts = run(asked())
            assert whole == "".join(parts) == "It is Rome."
            assert len(parts) > 2


def test_each_form_of_output(wished: Wishes, subtests: pytest.Subtests) -> None:
    ai = library("pydantic_ai")
    forms: dict[str, tuple[Any, str]] = {
        "tool": (Trip, calls(("final_result", JSON))),
        "named tool": (ai.ToolOutput(Trip, name="plan"), calls(("plan", JSON))),
        "native": (ai.NativeOutput(Trip), JSON), "prompted": (ai.PromptedOutput(Trip), JSON),
        "strict": (ai.ToolOutput(Trip, strict=True), calls(("final_result", JSON))),
        "one of two": ([Trip, bool], calls(("final_result_Trip", JSON))),
    }  # fmt: skip
    for name in ("chat", "responses", "messages"):
        for form, (kind, answer) in forms.items():
            with subtests.test(f"{name}, {form}"):
                wished.forget()
                wished.say(answer)

                async def asked(name: str = name, kind: Any = kind) -> Any:
                    agent = ai.Agent(
                        dict(models(wished.address))[name], output_type=kind, model_settings=SETTINGS
                    )
                    return (await agent.run(ASKED)).output

                assert run(asked()) == TRIP


def test_partial_objects_stream(wished: Wishes, subtests: pytest.Subtests) -> None:
    ai = library("pydantic_ai")
    for name in ("chat", "responses", "messages"):
        for kind, answer in ((Trip, calls(("final_result", JSON))), (ai.NativeOutput(Trip), JSON)):
            with subtests.test(f"{name}, {kind}"):
                wished.forget()
                wished.say(answer)

                async def asked(name: str = name, kind: Any = kind) -> list[Any]:
                    agent = ai.Agent(
                        dict(models(wished.address))[name], output_type=kind, model_settings=SETTINGS
                    )
                    async with agent.run_stream(ASKED) as stream:
                        return [one async for one in stream.stream_output(debounce_by=None)]

                parts = run(asked())
                assert parts[-1] == TRIP


def test_tools_in_a_loop(wished: Wishes, subtests: pytest.Subtests) -> None:
    ai = library("pydantic_ai")
    both = calls(("weather", '{"city": "Rome", "unit": "C"}'), ("clock", "{}"))
    typed = calls(("final_result", JSON))
    for name in ("chat", "responses", "messages"):
        for kind, last in (
            (str, "Sunny."),
            (Trip, typed),
            (ai.NativeOutput(Trip), JSON),
        ):
            with subtests.test(f"{name}, {kind}"):
                wished.forget()
                wished.say(both, last)

                async def asked(name: str = name, kind: Any = kind) -> Any:
                    agent = ai.Agent(
                        dict(models(wished.address))[name], output_type=kind,
                        model_settings={**SETTINGS, "parallel_tool_calls": True},
                        tools=[weather],
                    )  # fmt: skip

                    @agent.tool_plain
                    def clock() -> str:
                        """The time."""
                        return "noon"

                    return (await agent.run(ASKED)).output

                assert run(asked()) == ("Sunny." if kind is str else TRIP)
                assert "sunny in Rome" in wished.prompts[-1]
                assert "noon" in wished.prompts[-1]


def test_what_does_not_validate_is_asked_for_again(wished: Wishes, subtests: pytest.Subtests) -> None:
    ai = library("pydantic_ai")
    for name in ("chat", "responses", "messages"):
        with subtests.test(name):
            wished.forget()
            wished.say(calls(("final_result", JSON.replace("2", "0"))), calls(("final_result", JSON)))

            async def asked(name: str = name) -> Any:
                agent = ai.Agent(
                    dict(models(wished.address))[name], output_type=Trip, model_settings=SETTINGS
                )

                @agent.output_validator
                def some_days(found: Trip) -> Trip:
                    if not found.days:
                        raise ai.ModelRetry("at least a day is wanted")
                    return found

                return (await agent.run(ASKED)).output

            assert run(asked()) == TRIP
            assert "at least a day is wanted" in wished.prompts[-1]


def test_busy_servers_and_errors(refused: Refusing, wished: Wishes, subtests: pytest.Subtests) -> None:
    ai = library("pydantic_ai")
    wished.say("It is Rome.")
    for name in ("chat", "responses", "messages"):
        with subtests.test(name):
            refused.statuses, refused.n = [503, 429], 0

            async def asked(name: str = name, **settings: Any) -> Any:
                agent = ai.Agent(dict(models(refused.address))[name], model_settings={**SETTINGS, **settings})
                return (await agent.run(ASKED)).output

            assert run(asked()) == "It is Rome."
            assert refused.n == 3
            with pytest.raises(ai.exceptions.ModelHTTPError) as raised:
                run(asked(top_p=7.0))
            assert raised.value.status_code == 400
            assert "top_p" in str(raised.value)


@pytest.mark.model
def test_a_model_fills_a_nested_type(smollm: Running, subtests: pytest.Subtests) -> None:
    ai = library("pydantic_ai")
    for name in ("chat", "responses", "messages"):
        with subtests.test(name):

            async def asked(name: str = name) -> Any:
                agent = ai.Agent(
                    dict(models(smollm.address))[name], output_type=Trip, model_settings=SETTINGS
                )
                return (await agent.run("A trip to Rome, two slow days.")).output

            assert isinstance(run(asked()), Trip)
