"""Limits of reasoning in conversations: chats, generations and engines end it alike."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import graphml
from graphml import SamplingParams
from graphml.api.chat_prompt import chat_prompt
from graphml.errors import UsageError
from graphml.sampling.structured.params_structure import matcher_of
from graphml.text.answers import ContentDelta, ReasoningDelta
from graphml.text.chat_template import ChatTemplate
from tests import template_corpus, tiny_model

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant\n<think>\n"
)
ASKED = [{"role": "user", "content": "go"}]
LIMITED: dict[str, Any] = {"reasoning_budget": 6, "reasoning_budget_message": " Enough <|im_end|>."}
SCHEMA = '{"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}'


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[graphml.Model]:
    path = tiny_model.write(tmp_path_factory.mktemp("tiny") / "tiny.gguf", template=TEMPLATE, n_ctx=400)
    with graphml.load(path, backend="cpu", threads=1, kv="f32") as opened:
        yield opened


def answer(model: graphml.Model, **sampling: Any) -> tuple[str, str]:
    """Reasoning and text of a chat's answer."""
    events = list(model.chat().events("go", max_tokens=60, **sampling))
    reasoning = "".join(event.text for event in events if isinstance(event, ReasoningDelta))
    return reasoning, "".join(event.text for event in events if isinstance(event, ContentDelta))


def written(model: graphml.Model, ids: list[int]) -> bytes:
    assert model.tokenizer is not None
    return b"".join(map(model.tokenizer.piece_bytes, ids))


def test_a_chat_ends_reasoning_behind_its_budget(model: graphml.Model) -> None:
    reasoning, text = answer(model, **LIMITED)
    free, none = answer(model)
    assert not none
    assert reasoning == free[:6] + " Enough <|im_end|>."
    assert text


def test_generations_and_engines_do_as_chats(model: graphml.Model) -> None:
    session = model.session()
    ids = [token.id for token in session.generate(ASKED, max_tokens=60, **LIMITED)]
    assert b" Enough <|im_end|>.</think>" in written(model, ids)
    assert tiny_model.END not in ids
    with model.engine() as engine:
        ways = ({}, {"logprobs": 0}, {"rng": "llama.cpp"}, {"spec_type": "ngram"}, {"n": 2})
        for way in ways:
            for result in engine.submit(ASKED, max_tokens=60, **LIMITED, **way).results():
                assert result.tokens == ids, way


def test_a_schema_counts_behind_reasoning_that_was_ended(model: graphml.Model) -> None:
    reasoning, text = answer(model, json_schema=SCHEMA, **LIMITED)
    assert reasoning.endswith("Enough <|im_end|>.")
    assert json.loads(text).keys() == {"a"}
    with model.engine() as engine:
        result = engine.submit(ASKED, max_tokens=90, json_schema=SCHEMA, **LIMITED).result()
    assert json.loads(result.text.split("</think>")[1]).keys() == {"a"}


def test_a_caller_ends_the_reasoning(model: graphml.Model) -> None:
    with model.engine() as engine:
        free = engine.submit(ASKED, max_tokens=200)
        handle = engine.submit(ASKED, max_tokens=200, reasoning_budget=10**6)
        for count, _ in enumerate(handle, 1):
            if count == 3:
                assert handle.end_reasoning()
        said, whole = handle.result().text, free.result().text
        assert "</think>" in said
        assert whole.startswith(said.partition("</think>")[0])
        assert "</think>" not in whole
        assert not handle.end_reasoning()
        assert not free.end_reasoning()


def test_a_saved_chat_keeps_its_budget(model: graphml.Model, tmp_path: Path) -> None:
    """And not how reasoning ends, which each prompt says anew."""
    chat = model.chat(max_tokens=60, **LIMITED)
    chat.respond("go")
    chat.save(tmp_path / "chat")
    again = model.restore(tmp_path / "chat")
    assert isinstance(again, graphml.Chat)
    assert again.params == chat.params
    assert again.session.chooses.reasoning_end is None
    for of in (chat, again):
        of.respond("more")
    assert again.history == chat.history
    assert chat.history[-1]["reasoning_content"].endswith("Enough <|im_end|>.")


def test_a_limit_wants_a_conversation(model: graphml.Model) -> None:
    with pytest.raises(UsageError, match="reasoning_budget: wanted a conversation"):
        model.generate("go", reasoning_budget=3)


def test_a_model_that_marks_no_reasoning_has_no_limit(tmp_path: Path) -> None:
    path = tiny_model.write(tmp_path / "tiny.gguf")
    with graphml.load(path, backend="cpu", threads=1) as plain:
        assert answer(plain, **LIMITED) == answer(plain)


@pytest.mark.parametrize("template", ["openai-gpt-oss-120b", "Qwen-Qwen3-0.6B"])
def test_real_templates_say_how_reasoning_ends(model: graphml.Model, template: str) -> None:
    tokenizer, source = model.tokenizer, template_corpus.corpus()[template]
    assert tokenizer is not None
    prompt = chat_prompt(
        tokenizer, {"default": ChatTemplate(source)}, ASKED, SamplingParams(reasoning_budget=4)
    )
    end = prompt.params.reasoning_end
    assert end is not None
    matcher = matcher_of(prompt.params, tokenizer)
    assert matcher is not None
    for id in tokenizer.encode(end.open + "abcd", add_special=False, parse_special=True):
        matcher.accept(id)
    assert written(model, matcher.forced(64)) == end.close.encode()
