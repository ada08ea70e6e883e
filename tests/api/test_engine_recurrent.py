"""Engines of recurrent and hybrid models: what was computed before is found, and says the same."""

from __future__ import annotations

import numpy as np

import graphml
from graphml.api.engine_memory import n_blocks_for, n_checkpoints_for
from graphml.runtime.programs.memory_needed import state_bytes
from tests.api.tiny_models import opened_models

model = opened_models(["mamba-plain", "jamba-plain", "rwkv7-plain"])
IDS = np.random.default_rng(2).integers(0, 80, 120).tolist()


def alone(model: graphml.Model, ids: list[int], max_tokens: int) -> list[int]:
    with model.session(n_ctx=128) as session:
        return [token.id for token in session.generate(ids, max_tokens=max_tokens)]


def test_prompts_go_on_from_checkpoints(model: graphml.Model) -> None:
    """The same prompt, the next turn of a conversation, another question on the same text."""
    with model.engine(max_sequences=2, n_ctx=128) as engine:
        first = engine.submit(IDS[:90], max_tokens=10).result()
        again = engine.submit(IDS[:90], max_tokens=10).result()
        turn = [*IDS[:90], *first.tokens, 5, 6, 7]
        answered = engine.submit(turn, max_tokens=8).result()
        others = [engine.submit([*IDS[:70], *IDS[at : at + 9]], max_tokens=8).result() for at in (90, 100)]
        assert [one.n_cached for one in (first, again, answered)] == [0, 64, 96]
        assert [one.n_cached for one in others] == [64, 64]
        assert engine.stats().hit_tokens == 64 + 96 + 64 + 64
        assert first.tokens == again.tokens == alone(model, IDS[:90], 10)
        assert answered.tokens == alone(model, turn, 8)
        assert others[1].tokens == alone(model, [*IDS[:70], *IDS[100:109]], 8)


def test_without_the_prefix_cache_nothing_is_kept(model: graphml.Model) -> None:
    with model.engine(max_sequences=2, n_ctx=128, prefix_cache=False) as engine:
        found = [engine.submit(IDS[:90], max_tokens=4).result() for _ in range(2)]
        assert [one.n_cached for one in found] == [0, 0]
        assert found[0].tokens == found[1].tokens == alone(model, IDS[:90], 4)


def test_checkpoints_are_part_of_the_memory_that_is_given(model: graphml.Model) -> None:
    executor, one = model.executor, state_bytes(model.executor, {"S": 1, "C": 0})
    block = state_bytes(executor, {"S": 1, "C": 32}) - one
    given = 2 * one + 12 * one + 100 * block
    share = min(8, (given - 2 * one) // 4 // one)
    assert n_checkpoints_for(executor, given, 2) == share >= 3
    assert n_checkpoints_for(executor, 2 * one, 2) == n_checkpoints_for(executor, one, 2) == 0
    if block:
        n_blocks = n_blocks_for(executor, given, 2, 1 << 16, share)
        assert 0 <= given - (2 + share) * one - n_blocks * block < block
