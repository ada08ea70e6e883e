"""Many requests at once on a model that repeats a mark of its prompt: no mark is seen in another's output."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
import pytest

import graphml

WIDTH, N_VOCAB, N_CTX = 64, 60, 256
ORDINARY, MARKS = range(1, 10), range(10, 50)
CONSTANT, MARKED = 62, 63  # what each token's row has, and each mark's
SHARED = [1 + i % 9 for i in range(80)]


def write_model(path: Path) -> Path:
    """A llama of one layer, whose attention finds the mark of a text and whose output is that mark."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(N_CTX)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(1)
    writer.add_feed_forward_length(32)
    writer.add_head_count(1)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(N_VOCAB)
    writer.add_tokenizer_model("no_vocab")
    rows = np.zeros((N_VOCAB, WIDTH), np.float32)
    rows[:, CONSTANT] = 1
    rows[MARKS, MARKED], rows[MARKS, MARKS] = 1, 1
    query, key, value = (np.zeros((WIDTH, WIDTH), np.float32) for _ in range(3))
    query[CONSTANT, CONSTANT] = key[CONSTANT, MARKED] = 4  # where the rotation by position is slowest
    value[MARKS, MARKS] = 1
    tensors = {
        "token_embd": rows, "output": rows * (np.arange(WIDTH) < CONSTANT), "blk.0.attn_q": query,
        "blk.0.attn_k": key, "blk.0.attn_v": value, "blk.0.attn_output": 10 * np.eye(WIDTH),
        "blk.0.ffn_gate": np.zeros((32, WIDTH)), "blk.0.ffn_up": np.zeros((32, WIDTH)),
        "blk.0.ffn_down": np.zeros((WIDTH, 32)),
    }  # fmt: skip
    tensors |= {name: np.ones(WIDTH) for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm")}
    for name, array in tensors.items():
        writer.add_tensor(f"{name}.weight", array.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[graphml.Model]:
    path = write_model(tmp_path_factory.mktemp("isolation") / "marks.gguf")
    with graphml.load(path, "cpu", threads=2, n_batch=64) as model:
        yield model


def prompt(mark: int, chance: random.Random) -> list[int]:
    """A beginning that others have too, the mark, and some more."""
    start = SHARED[: chance.choice([0, 20, 40, 80])]
    return [*start, mark, *chance.choices(ORDINARY, k=chance.randint(1, 60))]


def kv_bytes(n_blocks: int) -> int:
    return n_blocks * 32 * 2 * WIDTH * 2


@pytest.mark.parametrize("constant_hash", [False, True])
def test_the_mark_of_a_prompt_is_seen_in_no_other_output(
    model: graphml.Model, monkeypatch: pytest.MonkeyPatch, constant_hash: bool
) -> None:
    """Forty at once, eight at a time, in so few blocks that some are preempted."""
    chance = random.Random(7)
    with model.engine(kv_bytes(20), 8, n_ctx=N_CTX) as engine:
        if constant_hash:
            monkeypatch.setattr(engine._loop.scheduler.pool, "_hash", lambda parent, tokens: b"")
        runner, all_came = engine._loop._runner, threading.Event()
        assert runner is not None
        run = runner.run
        monkeypatch.setattr(runner, "run", lambda plan: all_came.wait() and run(plan))
        handles = [(mark, engine.submit(prompt(mark, chance), max_tokens=70)) for mark in MARKS]
        all_came.set()
        for mark, handle in handles:
            assert handle.result().tokens == [mark] * 70
        stats = engine.stats()
        assert stats.n_preempted
        assert stats.hit_tokens
        assert (stats.running, stats.waiting, stats.blocks_used) == (0, 0, 0)


def test_two_hundred_cancels_at_random_moments_leave_the_pool_as_it_was(model: graphml.Model) -> None:
    chance = random.Random(8)
    with model.engine(kv_bytes(20), 8, n_ctx=N_CTX) as engine:
        free, handles = engine.stats().blocks_free, []
        for number in range(200):
            mark = MARKS[number % len(MARKS)]
            handle = engine.submit(
                prompt(mark, chance), max_tokens=chance.randint(1, 40), n=chance.choice([1, 1, 3])
            )
            handles.append((mark, handle))
            threading.Timer(chance.random() * 0.05, handle.cancel).start()
            time.sleep(chance.random() * 0.01)
        reasons = set()
        for mark, handle in handles:
            for result in handle.results(timeout=60):
                assert result.tokens == [mark] * result.n_gen
                reasons.add(result.stop_reason)
        assert "cancel" in reasons
        stats = engine.stats()
        assert (stats.running, stats.waiting, stats.blocks_used, stats.blocks_free) == (0, 0, 0, free)
