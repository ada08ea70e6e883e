"""OpenAI's and Anthropic's packages, which check each response strictly, for every endpoint and helper.

Five calls of OpenAI's own protocol fail its package's strict check, whoever answers: see `OUT_OF_REACH`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest

from tests.server.running_server import Running
from tests.server.strict_calls import ANTHROPIC, ASKED, CHAT, ENDED, OPENAI, SAID, TEXT, WHOLE

OUT_OF_REACH = {
    # Parts of a text have a null as their reason, which the package's type of them does not allow.
    "completion streamed", "completion streamed with usage",
    # A prompt's first token has a null as its log-probability.
    "completion with its prompt's logprobs",
    # The package asks for base64 where nothing is said, and checks it as numbers before it decodes it.
    "embeddings", "embeddings as base64",
}  # fmt: skip


def _given(server: Running, **more: Any) -> dict[str, Any]:
    return {"api_key": "none", "max_retries": 0, "_strict_response_validation": True, **more}


@pytest.fixture(scope="module")
def strict_openai(server: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(**_given(server, base_url=f"{server.address}/v1")) as client:
        yield client


@pytest.fixture(scope="module")
def strict_anthropic(server: Running) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(**_given(server, base_url=server.address)) as client:
        yield client


@pytest.mark.parametrize("name", sorted(set(OPENAI) - OUT_OF_REACH))
def test_openais_package_takes_the_answer(strict_openai: openai.OpenAI, name: str) -> None:
    assert OPENAI[name](strict_openai)


@pytest.mark.parametrize("name", ANTHROPIC)
def test_anthropics_package_takes_the_answer(strict_anthropic: anthropic.Anthropic, name: str) -> None:
    assert ANTHROPIC[name](strict_anthropic)


@pytest.mark.parametrize("name", sorted(OUT_OF_REACH))
def test_what_the_package_refuses_of_openais_protocol_it_takes_otherwise(
    server: Running, strict_openai: openai.OpenAI, name: str
) -> None:
    with pytest.raises(openai.APIResponseValidationError):
        OPENAI[name](strict_openai)
    lenient = _given(server, base_url=f"{server.address}/v1", _strict_response_validation=False)
    with openai.OpenAI(**lenient) as client:
        assert OPENAI[name](client)


def test_the_packages_types_refuse_what_openai_sends() -> None:
    """So no server can pass those checks and speak the protocol."""
    part = {"text": "a", "index": 0, "logprobs": None, "finish_reason": None}
    for kind, value in (
        (openai.types.CompletionChoice, part),
        (openai.types.Embedding, {"object": "embedding", "index": 0, "embedding": "AACAPw=="}),
        (openai.types.completion_choice.Logprobs, {"token_logprobs": [None, -1.0]}),
    ):
        with pytest.raises(ValueError, match="validation error"):
            kind.model_validate(value)


def test_asynchronous_clients_take_the_answers(server: Running) -> None:
    async def asked() -> None:
        client = openai.AsyncOpenAI(**_given(server, base_url=f"{server.address}/v1"))
        other = anthropic.AsyncAnthropic(**_given(server, base_url=server.address))
        assert (await client.chat.completions.create(**CHAT)).choices[0].message.content
        assert [one async for one in await client.chat.completions.create(**CHAT, stream=True)]
        async with client.chat.completions.stream(**WHOLE) as chat:
            assert (await chat.get_final_completion()).choices[0].message.parsed
        assert (await client.completions.create(**TEXT)).choices[0].text
        assert (await client.responses.create(**ASKED)).output_text
        assert [one async for one in await client.responses.create(**ASKED, stream=True)]
        assert (await other.messages.create(**SAID)).content
        async with other.messages.stream(**SAID) as message:
            assert (await message.get_final_message()).content
        assert (await client.chat.completions.create(**ENDED)).choices[0].message.content
        await client.close()
        await other.close()

    asyncio.run(asked())
