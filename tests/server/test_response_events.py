"""Events of `/v1/responses`: a replay has all of a response, and log-probabilities are told once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from types import SimpleNamespace
from typing import Any

import msgspec

from graphml.sampling.logprobs import TokenLogprobs
from graphml.server.openai_responses import _events
from graphml.server.response_events import ResponseEvents
from graphml.server.responses_input import Responses
from graphml.text.answers import ContentDelta, ToolCallBegin, ToolCallEnd


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

    one = None
    results = (
        SimpleNamespace(
            n_prompt=1, n_gen=1, n_cached=0, drafting=False, n_drafted=0, n_accepted=0,
            timings=SimpleNamespace(ttft_s=1.0, total_s=2.0),
        ),
    )  # fmt: skip

    def reason(self, index: int) -> str:
        return "stop"

    async def events(self) -> AsyncIterator[tuple[int, Any, list[Any]]]:
        scored = TokenLogprobs(7, b"a", -1.0, 1, 0.5)
        told = [ContentDelta("a"), ToolCallBegin(0, "c", "n"), ToolCallEnd(0, ok=False), ContentDelta("b")]
        yield 0, SimpleNamespace(logprobs=scored), told
        yield 0, None, []


def test_a_tokens_logprobs_are_told_once_though_two_texts_come_with_it() -> None:
    made: Any = Answered()

    async def told() -> list[bytes]:
        return [one async for one in _events(Responses(), made, {"status": "in_progress"}, lambda _: None)]

    events = read(asyncio.run(told()))
    deltas = [one["logprobs"] for one in events if one["type"] == "response.output_text.delta"]
    assert [[entry["id"] for entry in one] for one in deltas] == [[7], []]
    first, call, last = events[-1]["response"]["output"]
    assert call["status"] == "incomplete"
    assert [len(one["content"][0]["logprobs"]) for one in (first, last)] == [1, 0]
