"""OpenAI's and Anthropic's packages, which check each response strictly, for every endpoint and helper.

Five calls of OpenAI's own protocol fail its package's strict check, whoever answers: see `OUT_OF_REACH`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.server.running_server import Running

if TYPE_CHECKING:  # two seconds of importing, which processes with other tests need not take
    import anthropic
    import openai

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
    import openai

    with openai.OpenAI(**_given(server, base_url=f"{server.address}/v1")) as client:
        yield client


@pytest.fixture(scope="module")
def strict_anthropic(server: Running) -> Iterator[anthropic.Anthropic]:
    import anthropic

    with anthropic.Anthropic(**_given(server, base_url=server.address)) as client:
        yield client


def test_openais_package_takes_the_answer(strict_openai: openai.OpenAI, subtests: pytest.Subtests) -> None:
    from tests.server.strict_calls import OPENAI

    assert len(OPENAI) > 50
    for name in sorted(set(OPENAI) - OUT_OF_REACH):
        with subtests.test(name):
            assert OPENAI[name](strict_openai)


def test_anthropics_package_takes_the_answer(
    strict_anthropic: anthropic.Anthropic, subtests: pytest.Subtests
) -> None:
    from tests.server.strict_calls import ANTHROPIC

    assert len(ANTHROPIC) > 20
    for name, call in ANTHROPIC.items():
        with subtests.test(name):
            assert call(strict_anthropic)


def test_what_the_package_refuses_of_openais_protocol_it_takes_otherwise(
    server: Running, strict_openai: openai.OpenAI, subtests: pytest.Subtests
) -> None:
    import openai

    from tests.server.strict_calls import OPENAI

    lenient = _given(server, base_url=f"{server.address}/v1", _strict_response_validation=False)
    for name in sorted(OUT_OF_REACH):
        with subtests.test(name):
            with pytest.raises(openai.APIResponseValidationError):
                OPENAI[name](strict_openai)
            with openai.OpenAI(**lenient) as client:
                assert OPENAI[name](client)


def test_the_packages_types_refuse_what_openai_sends() -> None:
    """So no server can pass those checks and speak the protocol."""
    import openai

    part = {"text": "a", "index": 0, "logprobs": None, "finish_reason": None}
    for kind, value in (
        (openai.types.CompletionChoice, part),
        (openai.types.Embedding, {"object": "embedding", "index": 0, "embedding": "AACAPw=="}),
        (openai.types.completion_choice.Logprobs, {"token_logprobs": [None, -1.0]}),
    ):
        with pytest.raises(ValueError, match="validation error"):
            kind.model_validate(value)


def test_asynchronous_clients_take_the_answers(server: Running) -> None:
    import anthropic
    import openai

    from tests.server.strict_calls import ASKED, CHAT, ENDED, SAID, TEXT, WHOLE

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
