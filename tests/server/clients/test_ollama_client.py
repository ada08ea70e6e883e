"""ollama's own Python client, which checks what it gets by pydantic's types."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.clients.libraries import LEAVES_SOCKETS, library, run
from tests.server.clients.trips import JSON, MESSAGES, ROUNDS, TRIP, WEATHER, Trip
from tests.server.clients.wished_answers import Wishes

pytestmark = LEAVES_SOCKETS
OPTIONS = {"num_predict": 300, "temperature": 0, "num_ctx": 4096}
TOOLS = [{"type": "function", "function": WEATHER}]


def test_chats_and_prompts_whole_and_streamed(wished: Wishes) -> None:
    ollama = library("ollama")
    client = ollama.Client(host=wished.address)
    asked: dict[str, Any] = {"model": "any", "messages": MESSAGES, "options": OPTIONS}
    wished.say("It is Rome.")
    whole = client.chat(**asked)
    assert (whole.message.content, whole.done_reason) == ("It is Rome.", "stop")
    assert whole.eval_count == len("It is Rome.")  # a token for each byte
    parts = list(client.chat(**asked, stream=True))
    assert "".join(part.message.content for part in parts) == "It is Rome."
    assert len(parts) > 3
    assert parts[-1].prompt_eval_count == whole.prompt_eval_count
    assert client.generate("any", "Where?", options=OPTIONS).response == "It is Rome."

    async def streamed() -> str:
        other = ollama.AsyncClient(host=wished.address)
        return "".join([part.message.content async for part in await other.chat(**asked, stream=True)])

    assert run(streamed()) == "It is Rome."


def test_a_schema_and_a_call(wished: Wishes) -> None:
    ollama = library("ollama")
    client = ollama.Client(host=wished.address)
    wished.say(JSON)
    answer = client.chat("any", MESSAGES, format=Trip.model_json_schema(), options=OPTIONS).message.content
    assert Trip.model_validate_json(answer) == TRIP
    wished.forget()
    wished.say(*ROUNDS)
    called = client.chat("any", MESSAGES, tools=TOOLS, options=OPTIONS).message
    (call,) = called.tool_calls
    assert (call.function.name, call.function.arguments["city"]) == ("weather", "Rome")
    result = {"role": "tool", "tool_name": "weather", "content": "sunny"}
    last = client.chat("any", [*MESSAGES, called, result], tools=TOOLS, options=OPTIONS)
    assert last.message.content == ROUNDS[1]


def test_lists_vectors_and_errors(wished: Wishes) -> None:
    ollama = library("ollama")
    client = ollama.Client(host=wished.address)
    (listed,) = client.list().models
    shown = client.show(listed.model)
    assert (shown.details, "completion" in shown.capabilities) == (listed.details, True)
    assert shown.modelinfo["llama.context_length"] == 16384
    (loaded,) = client.ps().models
    assert (loaded.model, loaded.digest, loaded.size) == (listed.model, listed.digest, listed.size)
    assert (loaded.context_length, loaded.expires_at.year, loaded.size_vram) == (16384, 2318, 0)
    assert loaded.details == listed.details
    assert len(client.embed("any", ["a", "b"]).embeddings) == 2
    with pytest.raises(ollama.ResponseError, match="at most 16384") as refused:
        client.chat("any", MESSAGES, options={"num_ctx": 99999})
    assert refused.value.status_code == 400
    with pytest.raises(ollama.ResponseError, match="reads no images"):
        client.generate("any", "What is this?", images=[b"x"])
