"""A server of a diffusion model: answers by all protocols, as streams and not, and what it refuses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import graphml
from graphml.cli.serve import server_options
from graphml.server.options.command_line import parsed
from graphml.server.options.server_options import ServerOptions
from tests import tiny_model
from tests.server.running_server import Running, running

CHAT, COMPLETION = "/v1/chat/completions", "/completion"
MESSAGES = [{"role": "user", "content": "hello"}]
GREEDY = {"temperature": 0, "diffusion_block_length": 4, "diffusion_steps": 12}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model.write(tmp_path_factory.mktemp("served") / "tiny.gguf", denoises=True, n_ctx=400)


@pytest.fixture(scope="module")
def server(path: Path) -> Iterator[Running]:
    with (
        graphml.load(path, "reference", kv="f32", n_batch=320) as model,
        running(ServerOptions(parallel=3), model) as found,
    ):
        yield found


def test_a_text_is_the_models(server: Running) -> None:
    body = server.post(COMPLETION, {"prompt": "hello", "n_predict": 9, **GREEDY}).json()
    chosen: dict[str, Any] = {"top_k": 40, "top_p": 0.95, "min_p": 0.05, **GREEDY, "rng": "llama.cpp"}
    result = server.service.model.generate("hello", max_tokens=9, **chosen)
    assert body["content"] == result.text
    assert (body["tokens_predicted"], body["stop_type"]) == (9, "limit")
    assert body["timings"]["predicted_n"] == 9


def test_a_stream_has_the_same_text_and_counts(server: Running) -> None:
    body = {"messages": MESSAGES, "max_tokens": 13, "seed": 3, "diffusion_block_length": 4}
    whole = server.post(CHAT, body).json()
    events = server.events(CHAT, {**body, "stream_options": {"include_usage": True}})
    pieces = [event["choices"][0]["delta"].get("content") or "" for event in events if event["choices"]]
    assert "".join(pieces) == whole["choices"][0]["message"]["content"]
    assert len([piece for piece in pieces if piece]) > 1  # as it is settled, not at its end
    assert events[-1]["usage"] == whole["usage"]
    assert whole["usage"]["completion_tokens"] == 13
    assert whole["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert server.at_rest()


def test_a_stream_shows_each_step_where_that_is_asked_for(server: Running) -> None:
    body = {
        "messages": MESSAGES,
        "max_tokens": 12,
        "seed": 3,
        "diffusion_block_length": 4,
        "diffusion_steps": 9,
    }
    plain = server.events(CHAT, body)
    events = server.events(CHAT, {**body, "return_denoising": True})
    steps = [event for event in events if "denoising" in event]
    others = [event["choices"] for event in events if "denoising" not in event]
    assert others == [event["choices"] for event in plain]
    shown = [event["denoising"] for event in steps]
    assert [answer["step"] for answer in shown] == sorted({answer["step"] for answer in shown})
    assert shown[-1]["step"] <= 9 == shown[-1]["steps"]
    n_open = [answer["text"].count(answer["open"]) for answer in shown]
    assert n_open == sorted(n_open, reverse=True)
    assert n_open[0] > n_open[-1] == 0
    text = "".join(event["choices"][0]["delta"].get("content") or "" for event in plain)
    assert shown[-1]["text"] == text
    # A step comes before the tokens that it settles.
    first_text = next(i for i, event in enumerate(events) if event["choices"][0]["delta"].get("content"))
    assert events.index(steps[0]) < first_text
    assert all(event["choices"][0]["delta"] == {} for event in steps)


def test_other_models_have_no_steps_to_show(stories: graphml.Model) -> None:
    body = {"messages": MESSAGES, "max_tokens": 4, "return_denoising": True}
    with running(ServerOptions(parallel=1, n_ctx=64), stories) as server:
        events = server.events(CHAT, body)
    assert events
    assert not [event for event in events if "denoising" in event]


def test_n_answers_differ_and_each_is_a_seeds(server: Running) -> None:
    body = {"messages": MESSAGES, "max_tokens": 8, "seed": 3, "diffusion_steps": 8}
    several = [
        choice["message"]["content"] for choice in server.post(CHAT, {**body, "n": 3}).json()["choices"]
    ]
    alone = [
        server.post(CHAT, {**body, "seed": seed}).json()["choices"][0]["message"]["content"]
        for seed in (3, 4, 5)
    ]
    assert several == alone
    assert len(set(several)) == 3


def test_stop_strings_end_an_answer(server: Running) -> None:
    body = {"prompt": "hello", "n_predict": 12, "ignore_eos": True, **GREEDY}
    whole = server.post(COMPLETION, body).json()["content"]
    letter = next(letter for letter in whole[2:] if letter.isascii())
    cut = server.post(COMPLETION, {**body, "stop": [letter]}).json()
    assert (cut["content"], cut["stop_type"]) == (whole[: whole.index(letter)], "word")


@pytest.mark.parametrize(
    ("path_", "body"),
    [
        ("/v1/completions", {"prompt": "hello", "max_tokens": 5, "temperature": 0}),
        ("/v1/messages", {"messages": MESSAGES, "max_tokens": 5, "temperature": 0}),
        ("/v1/responses", {"input": "hello", "max_output_tokens": 5, "temperature": 0}),
        (
            "/api/chat",
            {"messages": MESSAGES, "stream": False, "options": {"num_predict": 5, "temperature": 0}},
        ),
    ],
)
def test_other_protocols_answer(server: Running, path_: str, body: dict[str, Any]) -> None:
    reply = server.post(path_, {"model": "tiny", **body})
    assert reply.status_code == 200, reply.text
    counts = reply.json().get("usage") or reply.json()
    assert 5 in (counts.get("completion_tokens"), counts.get("output_tokens"), counts.get("eval_count"))


@pytest.mark.parametrize(
    "wrong",
    [
        {"logprobs": True}, {"response_format": {"type": "json_object"}}, {"grammar": 'root ::= "a"'},
        {"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "required"},
        {"repeat_penalty": 1.5}, {"mirostat": 2}, {"speculative.type": "ngram-simple"},
    ],
)  # fmt: skip
def test_what_follows_a_text_is_refused(server: Running, wrong: dict[str, Any]) -> None:
    reply = server.post(CHAT, {"messages": MESSAGES, "max_tokens": 5, **wrong})
    assert reply.status_code == 400
    assert "a diffusion model fills in the tokens of an answer in any order" in reply.text
    assert server.at_rest()


@pytest.mark.parametrize(
    ("field", "wrong"),
    [("steps", 0), ("steps", "x"), ("block_length", -1), ("eps", 2), ("algorithm", 9), ("algorithm", "best"),
     ("alg_temp", -1), ("cfg_scale", 101)],
)  # fmt: skip
def test_fields_have_ranges(server: Running, field: str, wrong: object) -> None:
    reply = server.post(CHAT, {"messages": MESSAGES, "max_tokens": 5, f"diffusion_{field}": wrong})
    assert reply.status_code == 400
    assert f"diffusion_{field}" in reply.text


def test_a_prompt_is_no_longer_than_a_step(server: Running) -> None:
    assert server.http.get("/props").json()["default_generation_settings"]["n_ctx"] == 320
    reply = server.post(COMPLETION, {"prompt": [3] * 320, "n_predict": 4})
    assert reply.status_code == 400
    assert reply.json()["error"]["type"] == "exceed_context_size_error"
    last = server.post(COMPLETION, {"prompt": [3] * 316, "n_predict": 9, "ignore_eos": True, **GREEDY})
    assert (last.json()["tokens_predicted"], last.json()["stop_type"]) == (4, "limit")


def test_texts_are_embedded_besides(server: Running) -> None:
    assert len(server.post("/v1/embeddings", {"input": ["hello", "world"]}).json()["data"]) == 2


def test_flags_are_defaults_of_requests(path: Path) -> None:
    line = (
        "--diffusion-steps 6 --diffusion-block-length 3 --diffusion-algorithm 1 --diffusion-alg-temp 0.5 "
        "--diffusion-cfg-scale 1.5"
    )
    params = server_options(parsed(line.split())).params
    assert (params.diffusion_steps, params.diffusion_block_length, params.diffusion_algorithm) == (
        6,
        3,
        "entropy",
    )
    assert (params.diffusion_alg_temp, params.diffusion_cfg_scale) == (0.5, 1.5)
