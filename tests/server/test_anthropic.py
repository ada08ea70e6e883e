"""Anthropic's own client, which checks each response against its types, plain and streamed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.server.running_server import Running

if TYPE_CHECKING:  # it takes longer to import than all else that a process collects
    import anthropic

GREEDY = {"temperature": 0}
MESSAGES: list[Any] = [{"role": "user", "content": [{"type": "text", "text": "Once upon a time"}]}]


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[anthropic.Anthropic]:
    import anthropic

    with anthropic.Anthropic(
        api_key="none", base_url=server.address, max_retries=0, _strict_response_validation=True
    ) as client:
        yield client


def test_a_message_is_answered_alike_plain_and_streamed(client: anthropic.Anthropic) -> None:
    asked: dict[str, Any] = {"model": "any", "max_tokens": 10, "messages": MESSAGES, "system": "Book"}
    asked["extra_body"] = GREEDY
    plain = client.messages.create(**asked)
    assert plain.content[0].type == "text"
    assert plain.stop_reason == "max_tokens"
    assert plain.usage.output_tokens == 10
    assert plain.usage.input_tokens > 0
    with client.messages.stream(**asked) as stream:
        kinds = [one.type for one in stream if one.type not in ("text", "content_block_delta")]
        last = stream.get_final_message()
    assert kinds == [
        "message_start", "content_block_start", "content_block_stop", "message_delta", "message_stop"
    ]  # fmt: skip
    assert last.content[0].type == "text"
    assert last.content[0].text == plain.content[0].text
    assert last.stop_reason == "max_tokens"
    assert last.usage.output_tokens == 10


def test_a_stop_sequence_is_told(client: anthropic.Anthropic) -> None:
    found = client.messages.create(
        model="any", max_tokens=60, messages=MESSAGES, stop_sequences=["a"], extra_body=GREEDY
    )
    assert (found.stop_reason, found.stop_sequence) == ("stop_sequence", "a")


def test_tokens_are_counted(client: anthropic.Anthropic) -> None:
    short = client.messages.count_tokens(model="any", messages=MESSAGES).input_tokens
    assert (
        0 < short < client.messages.count_tokens(model="any", messages=MESSAGES, system="Book").input_tokens
    )


def test_a_billing_header_of_the_system_prompt_is_left_out(client: anthropic.Anthropic) -> None:
    counts = [
        client.messages.count_tokens(
            model="any", messages=MESSAGES,
            system=[{"type": "text", "text": text} for text in (*billed, "You write books.")],
        ).input_tokens
        for billed in ([], ["x-anthropic-billing-header: cc_version=2; cch=1a2b3;"])
    ]  # fmt: skip
    assert counts[0] == counts[1]


def test_errors_have_the_shape_of_the_protocol(client: anthropic.Anthropic) -> None:
    import anthropic

    with pytest.raises(anthropic.BadRequestError) as raised:
        client.messages.create(model="any", max_tokens=5, messages=MESSAGES, extra_body={"temperature": -1})
    assert isinstance(raised.value.body, dict)
    assert raised.value.body["error"]["type"] == "invalid_request_error"
    assert "temperature" in raised.value.body["error"]["message"]
