"""Forked sessions: the same to the last bit, and independent from there on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import graphml
from graphml import SamplingParams, UsageError
from tests import golden, tiny_model
from tests.sample_models import MODELS, write_model

NAMES = ("llama-dense", "mamba-dense", "jamba-dense", "gemma3-dense")
AT_RANDOM = SamplingParams(temperature=1.0, top_k=40)


@pytest.mark.parametrize("backend", ["cpu", "reference", "opencl"])
@pytest.mark.parametrize("name", NAMES)
def test_a_fork_goes_on_as_its_original(name: str, backend: str, tmp_path: Path) -> None:
    """Forked within its second block of the cache."""
    if backend == "opencl" and name not in NAMES[::2]:
        pytest.skip("two are enough for a compiler of GPUs")
    with graphml.load(golden.build(golden.read(name), tmp_path / "m.gguf"), backend=backend) as model:
        one, alone = model.session(n_ctx=96, seed=3), model.session(n_ctx=96, seed=3)
        ids = golden.read(name).tokens[:20]
        wanted = []
        for session in (one, alone):
            begun = [token.id for token in session.generate(ids, AT_RANDOM, 14)]
        other = one.fork()
        assert (other.tokens, other.seed, other.stop_reason) == ([*ids, *begun], 3, "length")
        wanted = [token.id for token in alone.generate((), AT_RANDOM, 8)]
        assert [token.id for token in other.generate((), AT_RANDOM, 8)] == wanted
        # The original knows nothing of it, and the other way round.
        assert one.tokens == [*ids, *begun]
        one.rewind(5)
        one.eval([1, 2, 3])
        np.testing.assert_array_equal(other.logits, alone.logits)
        np.testing.assert_array_equal(other.eval([9, 8]), alone.eval([9, 8]))


def test_a_fork_of_a_sequence_in_a_batch_holds_that_one(tmp_path: Path) -> None:
    with graphml.load(golden.build(golden.read("llama-dense"), tmp_path / "m.gguf")) as model:
        batch = model.batch(3, n_ctx=64)
        batch.eval([[1, 2, 3], [4, 5, 6, 7], [8]])
        forks = [session.fork() for session in batch.sessions]
        for session, made in zip(batch.sessions, forks, strict=True):
            assert made.tokens == session.tokens
            np.testing.assert_array_equal(made.logits, session.logits)
        rows = batch.eval([[11], [12], [13]])
        for row, made, token in zip(rows, forks, (11, 12, 13), strict=True):
            np.testing.assert_allclose(made.eval([token]), row, atol=1e-4)


def test_a_fork_has_read_the_source(tmp_path: Path) -> None:
    path = write_model(tmp_path / "t5.gguf", *MODELS["t5-plain"])
    with graphml.load(path, kv="f32") as model:
        session = model.session(n_ctx=64)
        session.encode([5, 6, 7, 8])
        session.eval([1, 2])
        made = session.fork()
        assert made.source == [5, 6, 7, 8]
        np.testing.assert_array_equal(made.eval([3]), session.eval([3]))
        session.encode([9])
        np.testing.assert_array_equal(made.tokens, [1, 2, 3])


def test_a_fork_captures_for_itself(tmp_path: Path) -> None:
    with graphml.load(golden.build(golden.read("llama-dense"), tmp_path / "m.gguf")) as model:
        session = model.session(n_ctx=64, capture="layers.0.*", history=True)
        session.eval([1, 2])
        made = session.fork()
        made.eval([3])
        assert (len(session.history), len(made.history)) == (1, 2)


def test_a_forked_chat_goes_on_alone(tmp_path: Path) -> None:
    template = "{% for m in messages %}<{{ m.content }}>{% endfor %}"
    path = tiny_model.write(tmp_path / "tiny.gguf", template=template)
    with graphml.load(path, "reference", kv="f32") as model:
        how = SamplingParams(temperature=1.0, top_k=40)
        chats = [model.chat(system="s", max_tokens=6, params=how, tools=[len_of], seed=7) for _ in range(2)]
        for chat in chats:
            chat.respond("hello", tools=[])
        chat, alone = chats
        fork = chat.fork()
        assert (fork.history, fork.system, fork.tools) == (chat.history, "s", chat.tools)
        assert (fork.max_tokens, fork.params) == (6, how)
        wanted = alone.respond("again", tools=[])  # the original is used between
        assert chat.respond("another", tools=[]) is not None
        assert fork.respond("again", tools=[]) == wanted
        assert fork.history == alone.history
        assert fork.session.tokens == alone.session.tokens != chat.session.tokens
        assert chat.history[3]["content"] == "another"
        fork.undo()
        assert len(chat.history) == 5
        chat.session.close()
        greedy = SamplingParams()
        fork.save(tmp_path / "fork.safetensors")
        assert fork.respond("so", greedy, tools=[]) == restored_chat(model, tmp_path).respond("so", greedy)


def restored_chat(model: graphml.Model, folder: Path) -> graphml.Chat:
    chat = model.restore(folder / "fork.safetensors")
    assert isinstance(chat, graphml.Chat)
    return chat


def len_of(text: str) -> int:
    """Count letters."""
    return len(text)


def test_a_fork_shares_no_tokens_that_wait(model: graphml.Model) -> None:
    session = model.session()
    tokens = session.generate(range(20, 30), None, 5)
    next(tokens)
    made = session.fork()
    rest = [token.id for token in tokens]
    assert [token.id for token in made.generate((), None, 4)] == rest
    assert made.tokens == session.tokens


def test_logits_are_those_after_the_last_token(model: graphml.Model) -> None:
    session = model.session()
    with pytest.raises(UsageError, match="logits: wanted a session that holds tokens"):
        _ = session.logits
    row = session.eval(range(20, 30))
    mine = session.logits
    assert (mine.shape, mine.dtype) == ((model.n_vocab,), np.dtype(np.float32))
    np.testing.assert_array_equal(mine, row)
    mine[:] = 0
    np.testing.assert_array_equal(session.logits, row)
    session.rewind(6)
    fresh = model.session()
    np.testing.assert_allclose(session.logits, fresh.eval(range(20, 26)), atol=1e-4)
    token = next(session.generate((), None, 3))
    assert session.tokens[-1] == token.id
    fresh.eval([token.id])
    np.testing.assert_allclose(session.logits, fresh.logits, atol=1e-4)
    session.close()
    with pytest.raises(UsageError, match="closed"):
        _ = session.logits


@pytest.mark.parametrize("name", ["mamba-dense", "jamba-dense"])
def test_a_copy_after_a_rewind_has_the_states_of_what_is_left(name: str, tmp_path: Path) -> None:
    """A rewind leaves them to the next step; a fork or a file comes before it."""
    with graphml.load(golden.build(golden.read(name), tmp_path / "m.gguf"), n_batch=8) as model:
        session, fresh = model.session(n_ctx=64), model.session(n_ctx=64)
        session.eval([1, 2, 3, 4, 5])
        session.eval(list(range(6, 20)))
        for left in (11, 5):  # between two copies, and at one
            session.rewind(left)
            session.save(tmp_path / "s.safetensors")
            copies = [session.fork(), model.restore(tmp_path / "s.safetensors")]
            fresh.rewind(0)
            wanted = fresh.eval([*session.tokens, 7])
            for one in copies:
                assert golden.nmse(one.eval([7]), wanted) < 1e-10
