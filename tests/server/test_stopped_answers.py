"""What a request is counted by while it runs, and however it ends: times in its chunks, `/metrics`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

import graphml
from graphml.api.engine import Engine
from graphml.errors import BackendError
from graphml.server.options.server_options import ServerOptions
from tests.server.running_server import Running, running

PROMPT = "Once upon a time, there was a girl who lived in a wood"
MESSAGES = [{"role": "user", "content": PROMPT}]
FIELDS = ("cache_n", "prompt_n", "prompt_ms", "prompt_per_token_ms", "prompt_per_second")


@pytest.fixture
def counting(stories: graphml.Model) -> Iterator[Running]:
    """A server whose counts are of one test."""
    with running(ServerOptions(parallel=2, n_ctx=512, metrics=True), stories) as found:
        yield found


def counts(server: Running) -> dict[str, float]:
    assert server.at_rest()
    lines = server.http.get("/metrics").text.splitlines()
    return {line.split(" ")[0]: float(line.split(" ")[1]) for line in lines if line[:1] not in ("#", "")}


def stopped(server: Running, path: str, body: dict[str, Any], n_events: int) -> list[str]:
    """The first events of a stream that its client leaves."""
    got: list[str] = []
    with server.http.stream("POST", path, json={**body, "stream": True}) as response:
        for line in response.iter_lines():
            got += [line] * line.startswith("data: ")
            if len(got) == n_events:
                break
    return got


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/v1/chat/completions", {"messages": MESSAGES}),
        ("/v1/chat/completions", {"messages": MESSAGES, "n": 2}),
        ("/completion", {"prompt": PROMPT}),
        ("/completion", {"prompt": [PROMPT, PROMPT * 2]}),
        ("/v1/completions", {"prompt": PROMPT, "n": 2}),
        ("/v1/responses", {"input": PROMPT}),
    ],
)
def test_each_chunk_has_the_prompts_own_time(server: Running, path: str, asked: dict[str, Any]) -> None:
    limit = "max_output_tokens" if "responses" in path else "max_tokens"
    body = {"timings_per_token": True, limit: 6, "temperature": 0, "cache_prompt": False, **asked}
    events = server.events(path, body)

    def index(event: dict[str, Any]) -> int:
        choices = event.get("choices")
        found: int = choices[0]["index"] if choices else event.get("index", 0)
        return found

    timed = [(index(event), event["timings"]) for event in events if "timings" in event]
    for number in {number for number, _ in timed}:
        *chunks, last = [timings for of, timings in timed if of == number]
        assert len(chunks) > 2
        assert last["prompt_ms"] > 0
        for name in FIELDS:
            assert {one[name] for one in chunks} == {last[name]}, name
        assert [one["predicted_n"] for one in chunks] == sorted({one["predicted_n"] for one in chunks})
        spent = [one["predicted_ms"] for one in chunks if one["predicted_n"] > 1]
        assert 0 < spent[0] < spent[-1] <= last["predicted_ms"]
        for one in chunks:
            rate = 1e3 * (one["predicted_n"] - 1) / one["predicted_ms"] if one["predicted_ms"] else 0.0
            assert one["predicted_per_second"] == pytest.approx(rate)


@pytest.mark.parametrize("name", ["/v1/chat/completions", "/completion"])
def test_an_answer_whose_client_leaves_is_counted(counting: Running, name: str) -> None:
    asked: dict[str, Any] = {"messages": MESSAGES, "prompt": PROMPT, "ignore_eos": True, "temperature": 0}
    n_prompt = counting.post(name, {**asked, "max_tokens": 1, "cache_prompt": False}).json()
    n_prompt = n_prompt.get("tokens_evaluated") or n_prompt["usage"]["prompt_tokens"]
    before = counts(counting)
    assert len(stopped(counting, name, {**asked, "cache_prompt": False, "max_tokens": 400}, 5)) == 5
    after = counts(counting)
    grown = {key: value - before[key] for key, value in after.items() if key in before}
    assert grown["llamacpp:prompt_tokens_total"] == n_prompt
    assert grown["llamacpp:prompt_seconds_total"] > 0
    n_gen = grown["llamacpp:tokens_predicted_total"]
    assert 4 <= n_gen <= 400
    assert grown["llamacpp:tokens_predicted_seconds_total"] > 0
    assert grown["vllm:request_generation_tokens_sum"] == n_gen == grown["vllm:generation_tokens_total"]
    assert grown["vllm:request_prompt_tokens_sum"] == n_prompt
    for of in ("e2e_request_latency", "request_prefill_time", "request_decode_time"):
        assert grown[f"vllm:{of}_seconds_count"] == 1, of
    assert after["llamacpp:n_tokens_max"] == n_prompt + n_gen
    if n_gen < 400:  # else it had ended before it was noticed
        assert after['vllm:request_success_total{finished_reason="abort"}'] == 1


def test_of_a_prompt_what_was_computed_counts(counting: Running) -> None:
    body = {"prompt": PROMPT * 20, "return_progress": True, "deadline": 1e-6, "n_predict": 4}
    last = counting.post("/completion", body).json()
    assert last["tokens_predicted"] == 0
    after = counts(counting)
    assert after["llamacpp:prompt_tokens_total"] < last["tokens_evaluated"]
    assert after["llamacpp:prompt_tokens_total"] % 64 == 0  # whole steps of it, or none
    assert after["vllm:request_prompt_tokens_sum"] == last["tokens_evaluated"]
    assert after["vllm:request_prefill_time_seconds_count"] == 0  # no first token came
    assert after['vllm:request_success_total{finished_reason="abort"}'] == 1


def test_a_prompt_whose_client_leaves_counts_as_far_as_it_was_computed(counting: Running) -> None:
    body = {"prompt": PROMPT * 20, "return_progress": True, "n_predict": 1}
    told = [json.loads(line[6:]) for line in stopped(counting, "/completion", body, 2)]
    progress = told[1]["prompt_progress"]
    counted = counts(counting)["llamacpp:prompt_tokens_total"]
    assert 0 < progress["processed"] <= counted <= progress["total"]


def test_an_answer_that_fails_in_mid_stream_is_counted(
    counting: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = counting.service.access.engine
    assert isinstance(engine, Engine)
    calls: list[int] = []
    step = engine._loop._hand_out

    def fails(*given: Any) -> None:
        calls.append(1)
        if len(calls) == 5:
            raise BackendError("the step has failed")
        step(*given)

    monkeypatch.setattr(engine._loop, "_hand_out", fails)
    events = counting.events("/completion", {"prompt": PROMPT, "n_predict": 40, "ignore_eos": True})
    assert "error" in events[-1]
    lines = counting.http.get("/metrics").text.splitlines()
    found = {line.split(" ")[0]: float(line.split(" ")[1]) for line in lines if line[:1] not in ("#", "")}
    assert found["llamacpp:tokens_predicted_total"] >= len(events) - 1
    assert found["llamacpp:prompt_tokens_total"] == events[0]["tokens_evaluated"]
    assert found['vllm:request_success_total{finished_reason="abort"}'] == 1
