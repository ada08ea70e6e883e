"""OpenAI's own client, which checks each response against its types, plain and streamed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.server.running_server import Running

if TYPE_CHECKING:  # it takes longer to import than all else that a process collects
    import openai

MESSAGES: list[Any] = [{"role": "system", "content": "Book"}, {"role": "user", "content": "Once upon a time"}]
SCHEMA = {"enum": ["yes", "no"]}


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[openai.OpenAI]:
    import openai

    with openai.OpenAI(
        api_key="none", base_url=f"{server.address}/v1", max_retries=0, _strict_response_validation=True
    ) as client:
        yield client


def test_a_chat_is_answered_alike_plain_and_streamed(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "any", "messages": MESSAGES, "max_tokens": 12, "seed": 7}
    plain = client.chat.completions.create(**asked)
    chunks = list(
        client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    )
    content = plain.choices[0].message.content
    assert content
    assert plain.choices[0].finish_reason == "length"
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[0].choices[0].delta.content is None
    assert "".join(one.choices[0].delta.content or "" for one in chunks if one.choices) == content
    assert [one.choices[0].finish_reason for one in chunks if one.choices][-1] == "length"
    assert len({one.id for one in chunks}) == 1
    usage = chunks[-1].usage
    assert usage is not None
    assert plain.usage is not None
    assert not chunks[-1].choices
    assert (usage.prompt_tokens, usage.completion_tokens) == (plain.usage.prompt_tokens, 12)
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens >= 32


def test_choices_differ_by_seed_and_are_the_same_again(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "any", "messages": MESSAGES, "max_tokens": 8, "seed": 3, "n": 3}
    texts = [one.message.content for one in client.chat.completions.create(**asked).choices]
    assert len(set(texts)) > 1
    assert texts == [one.message.content for one in client.chat.completions.create(**asked).choices]
    streamed = ["", "", ""]
    for chunk in client.chat.completions.create(**asked, stream=True):
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
    assert streamed == texts


def test_logprobs_join_to_the_text(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "any", "messages": MESSAGES, "max_tokens": 6, "temperature": 0}
    plain = client.chat.completions.create(**asked, logprobs=True, top_logprobs=3).choices[0]
    assert plain.logprobs is not None
    assert plain.logprobs.content is not None
    assert "".join(one.token for one in plain.logprobs.content) == plain.message.content
    for one in plain.logprobs.content:
        assert len(one.top_logprobs) == 3
        assert one.logprob == one.top_logprobs[0].logprob <= 0
    told = []
    for chunk in client.chat.completions.create(**asked, logprobs=True, top_logprobs=3, stream=True):
        scores = chunk.choices[0].logprobs
        told += [] if scores is None else scores.content or []
    assert [one.token for one in told] == [one.token for one in plain.logprobs.content]


def test_an_answer_follows_its_schema(client: openai.OpenAI) -> None:
    form: Any = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA, "strict": True}}
    asked = client.chat.completions.create(
        model="any", messages=MESSAGES, response_format=form, max_tokens=40, temperature=0
    )
    assert asked.choices[0].message.content in ('"yes"', '"no"')
    assert asked.choices[0].finish_reason == "stop"


@pytest.fixture(scope="module")
def lenient(server: Running) -> Iterator[openai.OpenAI]:
    import openai

    with openai.OpenAI(api_key="none", base_url=f"{server.address}/v1", max_retries=0) as client:
        yield client


def test_completions(client: openai.OpenAI, lenient: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "any", "prompt": "Once upon a time", "max_tokens": 8, "temperature": 0}
    plain = client.completions.create(**asked)
    assert plain.choices[0].text == ", there was a little girl"
    # The type of a chunk has no null for its reason, though OpenAI sends that.
    streamed = [one.choices[0].text for one in lenient.completions.create(**asked, stream=True)]
    assert "".join(streamed) == plain.choices[0].text
    several = client.completions.create(**{**asked, "prompt": ["Once upon a time", [1, 410]], "n": 1})
    assert [one.index for one in several.choices] == [0, 1]
    assert several.choices[0].text == plain.choices[0].text
    stopped = client.completions.create(**asked, stop=" there").choices[0]
    assert (stopped.text, stopped.finish_reason) == (",", "stop")


def test_an_echoed_prompt_is_the_text_that_was_sent(client: openai.OpenAI, lenient: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "any", "max_tokens": 8, "temperature": 0, "echo": True, "logprobs": 2}
    echoed = client.completions.create(**asked, prompt="Once upon a time").choices[0]
    assert echoed.text.startswith("Once upon a time, there")
    assert echoed.logprobs is not None
    tokens, offsets = echoed.logprobs.tokens, echoed.logprobs.text_offset
    assert tokens is not None
    assert offsets is not None
    assert "".join(tokens) == echoed.text
    assert all(echoed.text[at:].startswith(one) for at, one in zip(offsets, tokens, strict=True))
    chunks = [
        one.choices[0]
        for one in lenient.completions.create(**{**asked, "stream": True}, prompt="Once upon a time")
    ]
    assert "".join(one.text for one in chunks) == echoed.text
    parts = [one.logprobs for one in chunks if one.logprobs is not None]
    assert [one for part in parts for one in part.tokens or ()] == tokens
    assert [one for part in parts for one in part.text_offset or ()] == offsets
    assert [one for part in parts for one in part.token_logprobs or ()] == echoed.logprobs.token_logprobs
    # Ids are all told, a control token without text; nothing is before the first.
    ids = lenient.completions.create(**{**asked, "max_tokens": 0}, prompt=[1, 403, 407]).choices[0]
    assert ids.logprobs is not None
    assert ids.logprobs.tokens is not None
    assert ids.logprobs.tokens[0] == ""
    assert "".join(ids.logprobs.tokens) == ids.text
    assert ids.logprobs.token_logprobs is not None
    assert [one is None for one in ids.logprobs.token_logprobs] == [True, False, False]


def test_responses_go_on_from_one_another(client: openai.OpenAI) -> None:
    import openai

    asked: dict[str, Any] = {"model": "any", "max_output_tokens": 8, "temperature": 0}
    first = client.responses.create(**asked, input="Once upon a time", instructions="Book")
    assert first.id.startswith("resp_")
    assert first.status == "incomplete"
    assert first.output_text
    second = client.responses.create(**asked, input="and then", previous_response_id=first.id)
    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.input_tokens > first.usage.input_tokens
    counted = client.responses.input_tokens.count(
        model="any", input="and then", previous_response_id=first.id
    )
    assert counted.input_tokens == second.usage.input_tokens
    assert client.responses.retrieve(second.id).output_text == second.output_text
    client.responses.delete(second.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(second.id)


def test_responses_are_streamed_in_order(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "any", "input": "Once", "max_output_tokens": 6}
    events = list(client.responses.create(**asked, stream=True))
    kinds = [one.type for one in events]
    deltas = [one for one in kinds if one == "response.output_text.delta"]
    assert kinds == [
        "response.created", "response.in_progress", "response.output_item.added",
        "response.content_part.added", *deltas, "response.output_text.done", "response.content_part.done",
        "response.output_item.done", "response.incomplete",
    ]  # fmt: skip
    assert [one.sequence_number for one in events] == list(range(len(events)))
    text = "".join(one.delta for one in events if one.type == "response.output_text.delta")
    last = events[-1]
    assert last.type == "response.incomplete"
    assert last.response.output_text == text


def test_embeddings_of_a_decoder(client: openai.OpenAI, lenient: openai.OpenAI) -> None:
    # By default the client asks for base64, which its own strict validation refuses.
    rows = lenient.embeddings.create(model="any", input=["Once", "Once", "dog"]).data
    assert rows[0].embedding == rows[1].embedding != rows[2].embedding
    assert abs(sum(x * x for x in rows[0].embedding) - 1) < 1e-3
    floats = client.embeddings.create(model="any", input="Once", encoding_format="float", dimensions=8).data[
        0
    ]
    assert len(floats.embedding) == 8
    assert abs(sum(x * x for x in floats.embedding) - 1) < 1e-3


def test_models(client: openai.OpenAI) -> None:
    import openai

    assert [one.id for one in client.models.list()] == ["stories"]
    assert client.models.retrieve("stories").owned_by == "graphml"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


@pytest.mark.parametrize(
    ("field", "value"),
    [("temperature", -1), ("n", 0), ("max_tokens", -5), ("top_p", 2), ("stop", 5), ("messages", "text"),
     ("messages", [{"role": "robot", "content": ""}]), ("logit_bias", {"5": "much"}), ("top_logprobs", 2),
     ("response_format", {"type": "sound"})],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_a_wrong_field_is_named(client: openai.OpenAI, field: str, value: object) -> None:
    import openai

    asked: dict[str, Any] = {"model": "any", "messages": MESSAGES, "max_tokens": 2}
    with pytest.raises(openai.BadRequestError) as raised:
        client.chat.completions.create(**asked, extra_body={field: value})
    assert field in str(raised.value)
    assert raised.value.param == field


TOOL: Any = {
    "type": "function",
    "function": {
        "name": "look",
        "parameters": {
            "type": "object",
            "properties": {"at": {"enum": ["sun"]}},
            "required": ["at"],
            "additionalProperties": False,
        },
    },
}


def test_a_forced_call_of_a_tool_is_told_alike_plain_and_streamed(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "any", "messages": MESSAGES, "max_tokens": 150, "seed": 5}
    asked |= {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "look"}}}
    asked |= {"parallel_tool_calls": False}
    plain = client.chat.completions.create(**asked).choices[0]
    calls = plain.message.tool_calls
    assert calls is not None
    assert plain.finish_reason == "tool_calls"
    assert calls[0].type == "function"
    assert (calls[0].function.name, json.loads(calls[0].function.arguments)) == ("look", {"at": "sun"})
    deltas = [
        call
        for chunk in client.chat.completions.create(**asked, stream=True)
        for call in chunk.choices[0].delta.tool_calls or []
    ]
    assert deltas[0].id
    assert deltas[0].function is not None
    assert deltas[0].function.name == "look"
    assert all(one.id is None and one.index == 0 for one in deltas[1:])
    texts = [one.function.arguments or "" for one in deltas if one.function is not None]
    assert "".join(texts) == calls[0].function.arguments


def test_results_of_tools_are_part_of_the_prompt(client: openai.OpenAI) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": '{"at": "sun"}'}}
    messages = [*MESSAGES, {"role": "assistant", "content": None, "tool_calls": [call]}]
    messages.append({"role": "tool", "tool_call_id": "1", "content": "bright"})
    found = client.chat.completions.create(model="any", messages=messages, tools=[TOOL], max_tokens=1)
    short = client.chat.completions.create(model="any", messages=MESSAGES, tools=[TOOL], max_tokens=1)
    assert found.usage is not None
    assert short.usage is not None
    assert found.usage.prompt_tokens > short.usage.prompt_tokens


@pytest.mark.parametrize("cut", [slice(5, 6), slice(12, 15), slice(20, 29)])
def test_tokens_of_a_stop_string_have_no_logprobs(server: Running, cut: slice) -> None:
    """Plain and streamed tell the tokens that the text has some of."""
    asked: dict[str, Any] = {"max_tokens": 40, "temperature": 0, "ignore_eos": True}
    chat, prompt = {**asked, "messages": MESSAGES, "logprobs": True}, {**asked, "prompt": "The dog"}
    text = server.post("/v1/chat/completions", chat).json()["choices"][0]["message"]["content"]
    chat["stop"] = text[cut]
    plain = server.post("/v1/chat/completions", chat).json()["choices"][0]
    shown, tokens = plain["message"]["content"], [one["token"] for one in plain["logprobs"]["content"]]
    assert shown == text[: text.index(text[cut])]
    assert len("".join(tokens[:-1])) < len(shown) <= len("".join(tokens))
    streamed = [one["choices"][0] for one in server.events("/v1/chat/completions", chat)]
    told = [one["token"] for part in streamed if part["logprobs"] for one in part["logprobs"]["content"]]
    assert told == tokens
    text = server.post("/v1/completions", prompt).json()["choices"][0]["text"]
    found = server.post("/v1/completions", {**prompt, "logprobs": 1, "stop": text[cut]}).json()["choices"][0]
    assert len("".join(found["logprobs"]["tokens"][:-1])) < len(found["text"])
    prompt |= {"n_probs": 1, "stop": text[cut], "n_predict": 40}
    own = server.post("/completion", prompt).json()
    assert len(own["completion_probabilities"]) == len(found["logprobs"]["tokens"])
