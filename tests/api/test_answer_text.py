"""What ends an answer: the context alone where nothing else is said, and its text says so."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator

import pytest

import graphml
from tests import tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[graphml.Model]:
    path = tiny_model.write(tmp_path_factory.mktemp("tiny") / "tiny.gguf")
    with graphml.load(path, backend="reference", kv="f32") as opened:
        yield opened


def test_an_answer_without_max_tokens_ends_with_the_context_alone() -> None:
    with graphml.load("stories260k", "cpu", template=tiny_model.CHATML) as stories:
        chat = stories.chat()
        assert (chat.max_tokens, chat.stop_reason) == (None, None)
        assert stories.tokenizer is not None
        answer = chat.respond("hello", logit_bias=dict.fromkeys(stories.tokenizer.end_tokens, -math.inf))
    assert chat.session.stats.n_gen > 256
    assert (answer.stop_reason, chat.stop_reason, answer.finish_reason) == ("context", "context", "length")
    assert repr(answer) == f"AnswerText({str(answer)!r}, context)"
    assert "the last one was cut off: context" in repr(chat)


def test_an_answer_says_what_cut_it_off(model: graphml.Model) -> None:
    chat = model.chat()
    answer = chat.respond("hello", max_tokens=3)
    assert (answer, answer.text, answer.stop_reason) == (chat.text, chat.text, "length")
    assert repr(answer) == f"AnswerText({chat.text!r}, length)"
    assert "the last one was cut off: length" in repr(chat)
    assert copy.copy(answer).stop_reason == "length"
    ended = chat.respond("hello", stop=[answer.text[:1]], max_tokens=3)
    assert (ended.stop_reason, repr(ended)) == ("stop", repr(str(ended)))
    assert "cut off" not in repr(chat)
    with pytest.raises(AttributeError, match=r"Use session.stats, or Model.generate"):
        _ = answer.usage
