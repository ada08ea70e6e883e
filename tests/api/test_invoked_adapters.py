"""Activated adapters of a model: chats and engines find the invocation, sessions apply them at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import graphml
from tests import tiny_model
from tests.adapter_files import write_adapter

HEADER = "<|im_start|>assistant\n"
SCALE = 6.0


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model, and an adapter that an answer's begin invokes."""
    folder, numbers = tmp_path_factory.mktemp("invoked"), np.random.default_rng(1)
    path = tiny_model.write(folder / "tiny.gguf", n_ctx=400)
    with graphml.load(path, backend="reference") as model:
        invocation = model.encode(HEADER, False, True)
    a, b = (numbers.standard_normal(shape, np.float32) for shape in ((4, 32), (32, 4)))
    names = [f"blk.{i}.{part}.weight" for i in range(2) for part in ("attn_q", "attn_output")]
    pairs = dict.fromkeys(names, (a, b))
    return path, write_adapter(folder / "a.gguf", pairs, invocation=invocation)


@pytest.fixture(scope="module")
def model(files: tuple[Path, Path]) -> Iterator[graphml.Model]:
    with graphml.load(files[0], backend="reference", kv="f32", lora=[(files[1], SCALE)]) as opened:
        yield opened


def by_hand(files: tuple[Path, Path], ids: list[int], count: int) -> list[int]:
    """The greedy tokens behind a prompt, whose adapter works from the last invocation on."""
    with graphml.load(files[0], backend="reference", kv="f32") as plain:
        session = plain.session()
        header = plain.encode(HEADER, False, True)
        start = max(i for i in range(len(ids)) if ids[i : i + len(header)] == header)
        session.eval(ids[:start])
        session.set_lora([(files[1], SCALE)])
        return [token.id for token in session.generate(ids[start:], max_tokens=count)]


def test_turns_of_a_chat_and_requests_of_an_engine(model: graphml.Model, files: tuple[Path, Path]) -> None:
    chat = model.chat(max_tokens=6)
    for text in ("hello", "world, world", "he"):
        chat.add_user(text)
        chat.respond()
        made = chat.session.generated
        prompt = chat.session.tokens[: len(chat.session.tokens) - len(made)]
        assert made == by_hand(files, prompt, 6)
        with model.engine(n_ctx=400) as engine:
            assert engine.submit(prompt, max_tokens=6).result().tokens == made
            assert engine.submit(prompt, max_tokens=6, lora=[]).result().tokens != made
    again = list(chat.regenerate())
    assert "".join(again) == chat.history[-1]["content"]
    assert chat.session.generated == made


def test_a_saved_chat_goes_on_alike(model: graphml.Model, tmp_path: Path) -> None:
    chat = model.chat(max_tokens=5)
    chat.add_user("hello")
    chat.respond()
    chat.save(tmp_path / "chat.safetensors")
    restored = model.restore(tmp_path / "chat.safetensors")
    assert isinstance(restored, graphml.Chat)
    for one in (chat, restored):
        one.add_user("and now")
        one.respond()
    assert restored.session.tokens == chat.session.tokens


def test_without_an_invocation_it_does_not_work(model: graphml.Model, files: tuple[Path, Path]) -> None:
    ids = list(range(3, 40))
    with graphml.load(files[0], backend="reference", kv="f32") as plain, model.engine(n_ctx=100) as engine:
        want = [token.id for token in plain.session().generate(ids, max_tokens=5)]
        assert engine.submit(ids, max_tokens=5).result().tokens == want
        assert [token.id for token in model.session().generate(ids, max_tokens=5)] != want
