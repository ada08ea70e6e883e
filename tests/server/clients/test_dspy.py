"""DSPy: signatures through each adapter, an agent with tools and streams, over both APIs of OpenAI."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.clients.libraries import LEAVES_SOCKETS, LITELLMS_TYPES, library, run
from tests.server.clients.refusing_server import Refusing
from tests.server.clients.trips import ASKED, ENOUGH, JSON, TRIP, Trip
from tests.server.clients.wished_answers import Wishes
from tests.server.running_server import Running

pytestmark = [LEAVES_SOCKETS, LITELLMS_TYPES]
MODEL = "openai/gpt-4.1-mini"
"""DSPy asks for schemas and calls where LiteLLM knows of a model by this name that it takes them."""


def lm(base: str, **more: Any) -> Any:
    given = {"api_base": base, "api_key": "none", "cache": False, "temperature": 0, "max_tokens": 400, **more}
    return library("dspy").LM(MODEL, **given)


def plan() -> Any:
    dspy = library("dspy")

    class Plan(dspy.Signature):
        """Plan a trip."""

        question: str = dspy.InputField()
        trip: Trip = dspy.OutputField()

    return Plan


def weather(city: str, unit: str) -> str:
    """Look up the weather."""
    return f"sunny in {city}"


FIELDS = f"[[ ## trip ## ]]\n{JSON}\n\n[[ ## completed ## ]]"


def test_signatures_through_each_adapter(wished: Wishes, subtests: pytest.Subtests) -> None:
    dspy = library("dspy")
    adapters = {
        "chat": (dspy.ChatAdapter(), FIELDS), "json": (dspy.JSONAdapter(), f'{{"trip": {JSON}}}'),
        "xml": (dspy.XMLAdapter(), f"<trip>\n{JSON}\n</trip>"),
    }  # fmt: skip
    for kind in ("chat", "responses"):
        for name, (adapter, answer) in adapters.items():
            with subtests.test(f"{kind}, {name}"):
                wished.forget()
                wished.say(answer)
                with dspy.context(lm=lm(wished.v1, model_type=kind), adapter=adapter):
                    assert dspy.Predict(plan())(question=ASKED).trip == TRIP


def test_an_agent_with_tools(wished: Wishes, subtests: pytest.Subtests) -> None:
    dspy = library("dspy")

    def step(name: str, arguments: str) -> str:
        parts = {"next_thought": "I look.", "next_tool_name": name, "next_tool_args": arguments}
        said = "\n\n".join(f"[[ ## {key} ## ]]\n{value}" for key, value in parts.items())
        return f"{said}\n\n[[ ## completed ## ]]"

    with subtests.test("ReAct"):
        wished.say(
            step("weather", '{"city": "Rome", "unit": "C"}'), step("finish", "{}"),
            "[[ ## reasoning ## ]]\nSo it is.\n\n[[ ## answer ## ]]\nSunny.\n\n[[ ## completed ## ]]",
        )  # fmt: skip
        with dspy.context(lm=lm(wished.v1), adapter=dspy.ChatAdapter()):
            found = dspy.ReAct("question -> answer", tools=[weather], max_iters=3)(question=ASKED)
        assert found.answer == "Sunny."
        assert any("sunny in Rome" in one for one in wished.prompts)
    with subtests.test("native calls"):
        wished.forget()
        wished.say('{"name": "weather", "arguments": {"city": "Rome", "unit": "C"}}')

        ask = dspy.Signature("question: str, tools: list[dspy.Tool] -> calls: dspy.ToolCalls")
        native = dspy.ChatAdapter(use_native_function_calling=True)
        with dspy.context(lm=lm(wished.v1), adapter=native):
            found = dspy.Predict(ask)(question=ASKED, tools=[dspy.Tool(weather)])
        (call,) = found.calls.tool_calls
        assert (call.name, call.args) == ("weather", {"city": "Rome", "unit": "C"})


def test_streams(wished: Wishes) -> None:
    dspy = library("dspy")
    wished.say("[[ ## answer ## ]]\nIt is sunny in Rome today.\n\n[[ ## completed ## ]]")

    async def parts() -> list[Any]:
        listeners = [dspy.streaming.StreamListener(signature_field_name="answer")]
        stream = dspy.streamify(dspy.Predict("question -> answer"), stream_listeners=listeners)
        return [one async for one in stream(question=ASKED)]

    with dspy.context(lm=lm(wished.v1), adapter=dspy.ChatAdapter()):
        found = run(parts())
    texts = [one.chunk for one in found if isinstance(one, dspy.streaming.StreamResponse)]
    # Its listener looks for the end in ten tokens, which are letters here.
    assert "".join(texts).startswith("It is sunny in Rome today.")
    assert len(texts) > 2
    assert found[-1].answer == "It is sunny in Rome today."


def test_retries_errors_and_embeddings(refused: Refusing, wished: Wishes) -> None:
    dspy = library("dspy")
    wished.say("It is Rome.")
    refused.statuses = [503, 429]
    assert lm(refused.v1, num_retries=3)(ASKED) == ["It is Rome."]
    assert refused.n == 3
    with pytest.raises(Exception, match="top_p"):
        lm(refused.v1, num_retries=0, top_p=7)(ASKED)
    embed = dspy.Embedder("openai/any", api_base=wished.v1, api_key="none", caching=False)
    assert embed(["a dog", "a house"]).shape[0] == 2


@pytest.mark.model
def test_a_model_fills_a_nested_type(smollm: Running) -> None:
    dspy = library("dspy")
    with dspy.context(lm=lm(f"{smollm.address}/v1", max_tokens=ENOUGH), adapter=dspy.JSONAdapter()):
        assert isinstance(dspy.Predict(plan())(question=ASKED).trip, Trip)
