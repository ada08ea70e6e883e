"""`best_of` and `suffix` of `/v1/completions`."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.running_server import Running

ASKED: dict[str, Any] = {"prompt": "The dog", "max_tokens": 12, "temperature": 1.5, "seed": 3}


def test_the_most_likely_of_several_are_told_first(server: Running) -> None:
    every = server.post("/v1/completions", {**ASKED, "n": 5, "logprobs": 0}).json()
    logprobs = [one["logprobs"]["token_logprobs"] for one in every["choices"]]
    means = {one["text"]: sum(x) / len(x) for one, x in zip(every["choices"], logprobs, strict=True)}
    best = sorted(means, key=lambda text: -means[text])
    assert best != list(means)  # so that an order has to be made
    found = server.post("/v1/completions", {**ASKED, "n": 2, "best_of": 5}).json()
    assert [(one["index"], one["text"]) for one in found["choices"]] == [(0, best[0]), (1, best[1])]
    assert all(one["logprobs"] is None for one in found["choices"])  # nobody asked for them
    counts = "prompt_tokens", "completion_tokens", "total_tokens"
    assert [found["usage"][one] for one in counts] == [every["usage"][one] for one in counts]  # of all five


@pytest.mark.parametrize(
    "fields",
    [{"n": 3, "best_of": 2}, {"best_of": 129}, {"best_of": 3, "stream": True}],
    ids=["fewer than n", "too many", "streamed"],
)
def test_a_best_of_that_cannot_be_is_refused(server: Running, fields: dict[str, object]) -> None:
    refused = server.post("/v1/completions", {**ASKED, **fields})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "best_of")


def test_a_suffix_asks_for_the_text_between(coder: Running) -> None:
    common = {"temperature": 0, "max_tokens": 4}
    wanted = coder.post("/infill", {"input_prefix": "ab", "input_suffix": "c", **common}).json()
    asked = {"prompt": ["ab", "b"], "suffix": "c", **common}
    found = coder.post("/v1/completions", asked).json()
    assert [one["index"] for one in found["choices"]] == [0, 1]
    assert found["choices"][0]["text"] == wanted["content"]
    alone = coder.post("/v1/completions", {**asked, "prompt": "b", "verbose": True}).json()
    assert alone["__verbose"]["prompt"] == "<|fim_prefix|>b<|fim_suffix|>c<|fim_middle|>"


def test_a_suffix_that_cannot_be_is_refused(coder: Running, server: Running) -> None:
    for fields, name in (({"prompt": [1, 2]}, "prompt"), ({"prompt": "a", "echo": True}, "echo")):
        refused = coder.post("/v1/completions", {"suffix": "c", **fields})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, name)
    other = server.post("/v1/completions", {"prompt": "a", "suffix": "c"})
    assert other.status_code == 400
    assert "/" not in other.json()["error"]["message"]
