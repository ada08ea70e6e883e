"""Events of `/v1/responses`: a replay has all of a response, and log-probabilities are told once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from types import SimpleNamespace
from typing import Any

import msgspec

from graphml.sampling.candidates.logprobs import TokenLogprobs
from graphml.server.protocols.answer_tokens import AnswerTokens
from graphml.server.protocols.openai_responses import _events
from graphml.server.protocols.response_events import ResponseEvents
from graphml.server.protocols.responses_input import Responses
from graphml.text.answers import ContentDelta, ToolCallBegin, ToolCallEnd
from tests.server.running_server import Running


def read(events: Iterable[bytes]) -> list[dict[str, Any]]:
    return [msgspec.json.decode(one.partition(b"data: ")[2]) for one in events]


def test_a_replay_has_what_the_response_has() -> None:
    scores: list[dict[str, Any]] = [{"token": "a", "logprob": -1.0}, {"token": "b", "logprob": -2.0}]
    text = {"type": "output_text", "text": "ab", "annotations": [], "logprobs": scores}
    output: list[dict[str, Any]] = [
        {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [text]},
        {"type": "function_call", "id": "f", "call_id": "c", "name": "n", "arguments": "{",
         "status": "incomplete"},
    ]  # fmt: skip
    response = {"id": "r", "status": "completed", "output": output}
    events = read(ResponseEvents().replayed(response))
    assert [one["item"] for one in events if one["type"] == "response.output_item.done"] == output
    assert [one["sequence_number"] for one in events] == list(range(len(events)))
    assert events[-1]["response"]["output"] == output


class Answered:
    """An answer whose one token ends a text, is a call that breaks off and begins another text."""

    n_reasoning = 0
    results = (
        SimpleNamespace(
            n_prompt=1, n_gen=1, n_cached=0, drafting=False, n_drafted=0, n_accepted=0,
            timings=SimpleNamespace(ttft_s=1.0, total_s=2.0),
        ),
    )  # fmt: skip

    def __init__(self) -> None:
        self.tokens = [AnswerTokens()]

    def reason(self, index: int) -> str:
        return "stop"

    async def events(self) -> AsyncIterator[tuple[int, Any, list[Any]]]:
        scored = TokenLogprobs(7, b"a", -1.0, 1, 0.5)
        told = [ContentDelta("a"), ToolCallBegin(0, "c", "n"), ToolCallEnd(0, ok=False), ContentDelta("b")]
        token: Any = SimpleNamespace(logprobs=scored)
        self.tokens[0].push(token, told)
        yield 0, token, told
        yield 0, None, []


def test_a_tokens_logprobs_are_told_once_though_two_texts_come_with_it() -> None:
    made: Any = Answered()

    async def told() -> list[bytes]:
        return [one async for one in _events(Responses(), made, {"status": "in_progress"}, lambda *_: None)]

    events = read(asyncio.run(told()))
    deltas = [one["logprobs"] for one in events if one["type"] == "response.output_text.delta"]
    assert [[entry["id"] for entry in one] for one in deltas] == [[7], []]
    first, call, last = events[-1]["response"]["output"]
    assert call["status"] == "incomplete"
    assert [len(one["content"][0]["logprobs"]) for one in (first, last)] == [1, 0]


def test_a_replay_has_the_events_of_the_stream_with_their_numbers(server: Running) -> None:
    asked = {"input": "Once upon a time", "max_output_tokens": 9, "temperature": 0, "return_progress": True,
             "include": ["message.output_text.logprobs"], "top_logprobs": 2}  # fmt: skip
    streamed = server.events("/v1/responses", asked)
    assert any("prompt_progress" in one for one in streamed)
    wanted = [one for one in streamed if "prompt_progress" not in one]
    del wanted[-1]["timings"]
    path = f"/v1/responses/{wanted[-1]['response']['id']}"

    def replayed(after: int) -> list[dict[str, Any]]:
        reply = server.http.get(path, params={"stream": "true", "starting_after": after})
        return read(one.encode() for one in reply.text.split("\n\n") if one)

    assert replayed(-1) == wanted
    numbers = [one["sequence_number"] for one in wanted]
    assert len(numbers) > 12
    for after in (*range(numbers[-1] + 1), numbers[-1] + 5):
        assert replayed(after) == [one for one in wanted if one["sequence_number"] > after]


def test_what_a_response_does_not_need_is_not_kept(server: Running) -> None:
    item = {"type": "message", "role": "user", "content": "Once", "junk": "x" * 5000, "id": "msg_mine"}
    made = server.post("/v1/responses", {"input": [item], "max_output_tokens": 1}).json()
    (kept,) = server.http.get(f"/v1/responses/{made['id']}/input_items").json()["data"]
    assert (kept["id"], "junk" in kept) == ("msg_mine", False)
    for metadata in ({"a": "x" * 513}, {"a" * 65: "x"}, {str(one): "" for one in range(17)}, {"a": 1}):
        refused = server.post("/v1/responses", {"input": "Once", "metadata": metadata})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "metadata")
