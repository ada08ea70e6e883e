"""llama-server's own endpoints, as its clients use them."""

from __future__ import annotations

from typing import Any

import pytest

import graphml
from graphml.server.options.server_options import ServerOptions
from tests.server.running_server import Running, running
from tests.stories import STORIES

PROMPT = "I believe the meaning of life is"


def test_a_completion_says_all_that_is_known_of_it(server: Running) -> None:
    asked = {"prompt": PROMPT, "n_predict": 8, "seed": 42, "return_tokens": True}
    found = server.post("/completion", asked).json()
    assert found["content"] == " going to bed. I"  # llama-server's, with its settings and random numbers
    assert (found["stop_type"], found["tokens_predicted"], found["tokens_evaluated"]) == ("limit", 8, 18)
    assert found["prompt"] == f"<s> {PROMPT}"
    assert len(found["tokens"]) == 8
    assert found["generation_settings"]["top_k"] == 40
    assert found["timings"]["prompt_n"] + found["timings"]["cache_n"] == 18
    assert found["timings"]["predicted_per_second"] == pytest.approx(7e3 / found["timings"]["predicted_ms"])


def test_forced_text_comes_in_the_tokenizers_own_tokens(server: Running) -> None:
    ids = server.post("/tokenize", {"content": "little girl"}).json()["tokens"]
    (letter,) = server.post("/tokenize", {"content": "l"}).json()["tokens"][-1:]
    choices = '" little girl" | " little dog"'
    asked = {
        "prompt": "Once upon a time, there was a",
        "grammar": f"root ::= {choices}",
        "return_tokens": True,
    }
    asked |= {"temperature": 0, "logit_bias": [[letter, 100.0], ["g", 50.0]]}
    found = server.post("/completion", asked).json()
    assert found["content"] == " little girl"
    assert found["tokens"][: len(ids)] == ids


def test_a_streamed_completion_joins_to_the_plain_one(server: Running) -> None:
    asked: dict[str, Any] = {"prompt": PROMPT, "n_predict": 8, "seed": 42, "n_probs": 2}
    events = server.events("/completion", asked)
    assert "".join(one["content"] for one in events) == server.post("/completion", asked).json()["content"]
    assert [one["stop"] for one in events] == [False] * (len(events) - 1) + [True]
    assert all(len(one["completion_probabilities"][0]["top_logprobs"]) == 2 for one in events[:-1])


def test_prompts_may_be_texts_ids_both_or_several(server: Running) -> None:
    ids = server.post("/tokenize", {"content": PROMPT, "add_special": True}).json()["tokens"]
    asked = {"n_predict": 4, "temperature": 0}
    prompts = [ids, PROMPT, {"prompt_string": PROMPT}]
    texts = [one["content"] for one in server.post("/completion", {**asked, "prompt": prompts}).json()]
    assert len(set(texts)) == 1
    mixed = server.post("/completion", {**asked, "prompt": [1, PROMPT, 7]})
    assert mixed.json()["tokens_evaluated"] == 1 + 17 + 1
    wrong = server.post("/completion", {**asked, "prompt": [1, 5000]})
    assert wrong.status_code == 400
    assert wrong.json()["error"]["param"] == "prompt"


def test_fields_of_a_response_are_chosen(server: Running) -> None:
    asked = {
        "prompt": PROMPT,
        "n_predict": 2,
        "response_fields": ["content", "generation_settings/n_predict"],
    }
    assert set(server.post("/completion", asked).json()) == {"content", "generation_settings/n_predict"}


def test_a_prompt_longer_than_the_context_is_refused_and_the_next_one_answered(server: Running) -> None:
    refused = server.post("/completion", {"prompt": PROMPT * 40})
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert (error["type"], error["n_ctx"]) == ("exceed_context_size_error", 512)
    assert error["n_prompt_tokens"] > 512
    assert server.post("/completion", {"prompt": PROMPT, "n_predict": 1}).status_code == 200


def test_cache_prompt_false_finds_nothing(server: Running) -> None:
    asked = {"prompt": PROMPT * 4, "n_predict": 1}
    found = [
        server.post("/completion", {**asked, "cache_prompt": wanted}).json() for wanted in (True, True, False)
    ]
    first, again, without = (one["timings"]["cache_n"] for one in found)
    assert first < again  # what other prompts began with, and all but the last token
    assert (found[1]["timings"]["prompt_n"], without) == (1, 0)


def test_texts_become_tokens_and_back(server: Running) -> None:
    text = "It is 媽 and 🤗"
    pieces = server.post("/tokenize", {"content": text, "with_pieces": True}).json()["tokens"]
    assert any(isinstance(one["piece"], list) for one in pieces)  # bytes that are no whole character
    ids = [one["id"] for one in pieces]
    assert server.post("/detokenize", {"tokens": ids}).json()["content"].strip() == text
    assert server.post("/detokenize", {"tokens": [5000]}).status_code == 400


def test_a_message_cannot_forge_a_turn(server: Running) -> None:
    def count(content: str) -> int:
        body = {"messages": [{"role": "user", "content": content}]}
        found: int = server.post("/v1/chat/completions/input_tokens", body).json()["input_tokens"]
        return found

    prompt = server.post("/apply-template", {"messages": [{"role": "user", "content": "a</s>b"}]}).json()[
        "prompt"
    ]
    assert "a</s>b" in prompt
    assert count("a</s>b") > count("ab") + 1  # four pieces of text and no end token


def test_slots_props_and_health(server: Running) -> None:
    slots = server.http.get("/slots").json()
    assert [one["id"] for one in slots] == [0, 1, 2, 3]
    assert not any(one["is_processing"] for one in slots)
    props = server.http.get("/props").json()
    assert props["total_slots"] == 4
    assert props["has_chat_template"] is False
    assert props["default_generation_settings"]["n_ctx"] == 512
    assert server.http.get("/health").json() == {"status": "ok"}
    assert server.http.get("/version").json() == {"version": graphml.__version__}
    assert server.http.get("/v1/models/nope").status_code == 404
    assert server.http.get("/nothing").json()["error"]["type"] == "not_found_error"


def test_progress_of_a_prompt_is_told(server: Running) -> None:
    asked = {"prompt": PROMPT * 8, "n_predict": 1, "return_progress": True, "cache_prompt": False}
    told = [one["prompt_progress"] for one in server.events("/completion", asked) if "prompt_progress" in one]
    assert [one["processed"] for one in told] == [0, 64, 128, told[0]["total"]]


def test_metrics_count_what_was_answered(server: Running) -> None:
    def totals() -> dict[str, float]:
        lines = server.http.get("/metrics").text.splitlines()
        return {line.split(" ")[0]: float(line.split(" ")[1]) for line in lines if line[:1] not in ("#", "")}

    before = totals()
    server.post("/completion", {"prompt": PROMPT, "n_predict": 5})
    after = totals()
    assert after["llamacpp:tokens_predicted_total"] - before["llamacpp:tokens_predicted_total"] == 5
    assert after["vllm:generation_tokens_total"] == after["llamacpp:tokens_predicted_total"]
    count = "vllm:time_to_first_token_seconds_count"
    assert after[count] - before[count] == 1
    stats = server.service.access.stats()
    assert stats is not None
    assert after["llamacpp:n_busy_slots_per_decode"] == pytest.approx(stats.sequences_per_step)
    assert 1 <= stats.sequences_per_step < stats.rows_per_step  # prompts have more rows than sequences


def test_what_is_not_there_is_said(server: Running) -> None:
    assert server.post("/rerank", {"query": "a", "documents": ["b"]}).status_code == 501
    assert server.post("/slots/0?action=save", {"filename": "a"}).status_code == 501


def test_the_openapi_document_has_all_routes_and_the_ranges_of_fields(server: Running) -> None:
    document = server.http.get("/openapi.json").json()
    for path in ("/v1/chat/completions", "/v1/messages", "/v1/responses/{id}", "/slots/{slot}", "/rerank"):
        assert path in document["paths"]
    chat = document["components"]["schemas"]["ChatCompletion"]
    assert chat["required"] == ["messages"]
    assert {"type": "number", "minimum": 0.0} in chat["properties"]["temperature"]["anyOf"]
    body = document["paths"]["/v1/messages"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body == {"$ref": "#/components/schemas/Messages"}


def test_what_copies_a_begun_block_is_compiled_before_the_first_request() -> None:
    with (
        graphml.load(STORIES, "cpu", threads=1, n_batch=64) as model,
        running(ServerOptions(parallel=2, n_ctx=256), model),
    ):
        assert model.executor.movers


def test_a_tokenizer_is_told_as_vllm_does(server: Running) -> None:
    info = server.http.get("/tokenizer_info").json()
    assert (info["bos_token"], info["eos_token"], info["model_max_length"]) == ("<s>", "</s>", 512)
    assert "add_generation_prompt" in info["chat_template"]
    plain = {"content": "<s> a girl", "add_special": True}
    found = server.post("/tokenize", {"model": "any", "prompt": "<s> a girl"}).json()
    assert found["tokens"] == server.post("/tokenize", plain).json()["tokens"]
    assert (found["count"], found["max_model_len"]) == (len(found["tokens"]), 512)
    bare = server.post("/tokenize", {"prompt": info["eos_token"], "add_special_tokens": False}).json()
    assert bare["tokens"] == [2]
    assert server.post("/detokenize", {"tokens": found["tokens"][2:]}).json()["prompt"].strip() == "a girl"
