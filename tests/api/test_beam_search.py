"""Beam search against a plain one that evaluates each beam from scratch, and against all continuations."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphml
from graphml.api.beam_search import Beam
from graphml.errors import ContextFullError, UsageError
from graphml.ir.cells import BLOCK_SIZE
from graphml.runtime.blocks.block_pool import BlockPool
from graphml.runtime.sessions.beams import BeamSearch, BeamSettings, blocks_for
from graphml.runtime.steps.runner import Runner
from tests.api.tiny_models import log_softmax, stories_and
from tests.sample_models import MODELS, write_model

model = stories_and(["mamba-plain", "jamba-plain"], n_batch=16)
IDS = [1, *np.random.default_rng(3).integers(3, 75, 29).tolist()]
ENDS = [419, 426, 433, 7, 9]  # some that are likely in stories, some of small vocabularies


def plain_search(
    model: graphml.Model, ids: list[int], width: int, most: int, penalty: float, early: bool | str,
    ends: set[int],
) -> list[tuple[list[int], bool, float]]:  # fmt: skip
    """Tokens without the end, whether they ended, score. Nothing is shared; as few lines as may be."""
    live, done = [(0.0, list[int]())], list[tuple[float, list[int], bool]]()
    for length in range(1, most + 1):
        ways = []
        for at, (total, made) in enumerate(live):
            with model.session() as session:
                row = log_softmax(session.eval([*ids, *made]))
            ways += [(total + row[token], at, token) for token in range(model.n_vocab)]
        ways = sorted(ways, key=lambda way: (-way[0], way[1:]))[: 2 * width]
        done += [
            (total / length**penalty, live[at][1], True) for total, at, token in ways[:width] if token in ends
        ]
        going = [way for way in ways if way[2] not in ends][:width]
        done = sorted(done, key=lambda one: -one[0])[:width]
        if len(done) == width:
            reach = most if early == "never" and penalty > 0 else length
            if early is True or not going or done[-1][0] >= going[0][0] / reach**penalty:
                break
        live = [(total, [*live[at][1], token]) for total, at, token in going]
        if length == most:
            done += [(total / length**penalty, made, False) for total, made in live]
    best = sorted(done, key=lambda one: -one[0])[:width]
    return [(made, ended, score) for score, made, ended in best]


def same(found: list[Beam], expected: list[tuple[list[int], bool, float]]) -> None:
    assert [(one.tokens, one.stop_reason == "end") for one in found] == [one[:2] for one in expected]
    assert [one.score for one in found] == pytest.approx([one[2] for one in expected], abs=1e-3)


@pytest.mark.parametrize(
    ("width", "penalty", "early"), [(1, 1.0, False), (3, 1.0, True), (4, 0.0, False), (3, 2.0, "never")]
)
def test_it_finds_what_a_plain_search_finds(
    model: graphml.Model, width: int, penalty: float, early: bool | str
) -> None:
    """Over the edge of a block, after a prompt that takes two steps."""
    ends = {one for one in ENDS if one < model.n_vocab}
    ends |= set() if model.tokenizer is None else set(model.tokenizer.end_tokens)
    how: Any = {"n_best": width, "length_penalty": penalty, "early_stopping": early}
    found = model.beam_search(IDS, width, 6, **how, stop_tokens=[one for one in ENDS if one < model.n_vocab])
    same(found, plain_search(model, IDS, width, 6, penalty, early, ends))
    assert len(IDS) < BLOCK_SIZE < len(IDS) + 6


def test_as_many_beams_as_words_find_the_very_best(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_model(path, *MODELS["llama-plain"])
    with graphml.load(path, "cpu", threads=1, n_batch=160, kv="f32") as model:
        count = model.n_vocab
        (best,) = model.beam_search([1, 5, 7], count, 2, length_penalty=0.0)
        with model.session() as session:
            first = log_softmax(session.eval([1, 5, 7]))
        sums = {}
        for one in range(count):
            with model.session() as session:
                second = log_softmax(session.eval([1, 5, 7, one]))
            sums |= {(one, two): first[one] + second[two] for two in range(count)}
        assert tuple(best.tokens) == max(itertools.product(range(count), repeat=2), key=sums.__getitem__)


def test_one_beam_is_greedy(model: graphml.Model) -> None:
    (greedy,) = model.generate([IDS], graphml.SamplingParams(logprobs=0), 20)
    (one,) = model.beam_search(IDS, 1, 20)
    assert one.tokens == greedy.tokens
    assert one.text == greedy.text
    assert one.logprob == pytest.approx(greedy.cumulative_logprob, abs=1e-3)


def test_blocks_and_slots_come_back(model: graphml.Model) -> None:
    """At each step no block is held by nobody, and the pool is large enough at its smallest."""
    settings = BeamSettings(4, 40, 1.0, False, frozenset())
    n_blocks = blocks_for(len(IDS), settings)
    runner, pool = Runner(model.executor, n_blocks, 8), BlockPool(n_blocks, BLOCK_SIZE, False)
    search, held = BeamSearch(runner, pool, settings, model.path), []
    logits = search._logits

    def counted(plan: Any) -> Any:
        blocks = {block for rows in plan.rows for block in rows.sequence.blocks}
        held.append(pool.n_used - len(blocks))
        slots = [rows.sequence.slot for rows in plan.rows]
        assert len({*slots, *search._slots}) == 8
        return logits(plan)

    search._logits = counted  # type: ignore[method-assign]
    found = search.run(np.array(IDS, np.int32))
    assert len(found) == 4
    assert set(held) == {0}


def test_a_request_that_cannot_be_is_refused(model: graphml.Model) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"beams": 0}, "beams: wanted 1 to 8"),
        ({"beams": 9}, "beams: wanted 1 to 8"),
        ({"beams": 2, "n_best": 3}, "n_best: wanted 1 to 2"),
        ({"max_tokens": 0}, "max_tokens: wanted"),
        ({"length_penalty": float("nan")}, "length_penalty: wanted"),
        ({"early_stopping": "soon"}, "early_stopping: wanted True, False or 'never'; got 'soon'"),
        ({"stop_tokens": [10**6]}, "ids: wanted ids from 0"),
    ]
    for given, told in wrong:
        with pytest.raises(UsageError, match=f"^{told}"):
            model.beam_search(IDS, **given)
    with pytest.raises(ContextFullError, match=r"beam_search: wanted a prompt and max_tokens that fit"):
        model.beam_search(IDS, max_tokens=10**6)


def test_models_that_cannot_be_forked_are_refused(tmp_path: Path) -> None:
    name = next(one for one in MODELS if one.startswith("gemma3"))
    write_model(tmp_path / "model.gguf", *MODELS[name])
    with (
        graphml.load(tmp_path / "model.gguf", "reference", n_batch=16) as windowed,
        pytest.raises(UsageError, match=r"beam_search: in gemma3 some layers see a window"),
    ):
        windowed.beam_search([1, 2])
