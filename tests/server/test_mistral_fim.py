"""`/v1/fim/completions`, as Mistral's clients and editors ask for it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.running_server import Running

ASKED: dict[str, Any] = {
    "model": "codestral-latest", "prompt": "ab", "suffix": "c", "temperature": 0, "max_tokens": 4
}  # fmt: skip


def test_the_text_between_prompt_and_suffix_is_a_message(coder: Running) -> None:
    common = {"temperature": 0, "max_tokens": 4}
    wanted = coder.post("/infill", {"input_prefix": "ab", "input_suffix": "c", **common}).json()
    found = coder.post("/v1/fim/completions", ASKED).json()
    (choice,) = found["choices"]
    assert choice["message"] == {"role": "assistant", "content": wanted["content"], "tool_calls": None}
    assert (found["object"], choice["finish_reason"]) == ("chat.completion", "length")
    assert found["usage"]["prompt_tokens"] == wanted["tokens_evaluated"]
    assert found["usage"]["completion_tokens"] == 4
    every = coder.post("/fim/completions", {**ASKED, "n": 2}).json()["choices"]
    assert [one["index"] for one in every] == [0, 1]
    assert coder.at_rest()


def test_a_streamed_filling_is_that_text_and_ends_with_counts(coder: Running) -> None:
    plain = coder.post("/v1/fim/completions", ASKED).json()
    chunks = coder.events("/v1/fim/completions", ASKED)
    deltas = [one["choices"][0]["delta"] for one in chunks]
    assert deltas[0]["role"] == "assistant"
    assert "".join(one["content"] for one in deltas) == plain["choices"][0]["message"]["content"]
    assert [one["choices"][0]["finish_reason"] for one in chunks[-2:]] == [None, "length"]
    assert chunks[-1]["usage"]["total_tokens"] == plain["usage"]["total_tokens"]
    assert {one["object"] for one in chunks} == {"chat.completion.chunk"}


def test_a_seed_by_mistrals_name_is_one(coder: Running) -> None:
    hot = {**ASKED, "temperature": 2.0, "max_tokens": 12}

    def text(**more: int) -> str:
        (choice,) = coder.post("/v1/fim/completions", {**hot, **more}).json()["choices"]
        return str(choice["message"]["content"])

    assert text(random_seed=5) == text(random_seed=5) == text(seed=5)
    assert len({text(random_seed=number) for number in range(5)}) > 1


@pytest.mark.parametrize(
    ("fields", "name"),
    [({"prompt": None}, "prompt"), ({"suffix": 1}, "suffix"), ({"min_tokens": 2}, "min_tokens")],
)
def test_a_filling_that_cannot_be_is_refused(coder: Running, fields: dict[str, Any], name: str) -> None:
    refused = coder.post("/v1/fim/completions", {**ASKED, **fields})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, name)


def test_a_model_without_gaps_refuses_to_fill_them(server: Running) -> None:
    assert server.post("/v1/fim/completions", ASKED).status_code == 400
