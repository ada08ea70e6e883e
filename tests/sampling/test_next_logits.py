"""What is read of a step's logits to sample a token: the top k, the whole row, or a masked row."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graphml.errors import UsageError, WeightsError
from graphml.sampling import PeekableRandom, SamplingParams, TopK, make_sampler
from graphml.sampling.candidates.candidates import leading
from graphml.sampling.chain.next_logits import NOTHING_KNOWN, NextLogits, next_token
from tests.sampling.words import PAIRS

ROW = np.random.default_rng(2).standard_normal(50).astype(np.float32) * 3
OF_TOP = SamplingParams(temperature=0.7, top_k=8)
OF_ROW = SamplingParams(temperature=0.7, repeat_penalty=1.1)
PATH = Path("model.gguf")


class Rows:
    """Counts how often the whole row of a top k is read; it may be gone."""

    def __init__(self, row: Any = ROW) -> None:
        self.row, self.n_read = row, 0

    def read(self) -> Any:
        self.n_read += 1
        return self.row

    def top_k(self, k: int = 16) -> TopK:
        ids = leading(ROW, k).astype(np.int32)
        total = np.exp(ROW.astype(np.float64)).sum()
        return TopK(ids, ROW[ids], math.log(total), len(ROW), self.read)


class Odd:
    """Allows odd tokens."""

    def masked(self, row: Any) -> NextLogits:
        return NextLogits(np.where(np.arange(len(row)) % 2, row, -np.inf).astype(np.float32))


def expected(params: SamplingParams, row: Any = ROW) -> int:
    return make_sampler(params).sample(row, [3], PeekableRandom(5))


def token(known: NextLogits, params: SamplingParams, **more: Any) -> int | None:
    return next_token(known, params, [3], PeekableRandom(5, PAIRS), PATH, **more)


def test_the_top_k_is_enough_where_it_is() -> None:
    rows = Rows()
    assert token(NextLogits(rows.top_k()), OF_TOP) == expected(OF_TOP)
    assert rows.n_read == 0


def test_else_the_row_is_read_once() -> None:
    rows = Rows()
    known = NextLogits(rows.top_k())
    assert known.row is None
    assert token(known, OF_ROW) == token(known, OF_ROW) == expected(OF_ROW)
    assert token(known, OF_TOP) == expected(OF_TOP)
    assert rows.n_read == 1


def test_a_row_that_is_gone_gives_no_token() -> None:
    rows = Rows(None)
    assert token(NextLogits(rows.top_k()), OF_ROW) is None
    assert token(NextLogits(rows.top_k()), OF_TOP, matcher=Odd()) is None
    assert token(NextLogits(rows.top_k()), OF_TOP, scores=[]) == expected(OF_TOP)
    scored = SamplingParams(temperature=0.7, logprobs=2)
    assert token(NextLogits(rows.top_k()), scored, scores=[]) is None
    assert NextLogits(rows.top_k()).whole_row() is None
    assert (NOTHING_KNOWN.known, NOTHING_KNOWN.whole_row(), token(NOTHING_KNOWN, OF_ROW)) == (
        False,
        None,
        None,
    )


def test_what_is_known() -> None:
    top = Rows().top_k()
    assert (NextLogits(top).known, NextLogits(top).top_k) == (True, top)
    assert (NextLogits(ROW).known, NextLogits(ROW).top_k) == (True, None)


@pytest.mark.parametrize("params", [OF_TOP, OF_ROW])
def test_a_matcher_masks_the_whole_row(params: SamplingParams) -> None:
    masked = Odd().masked(ROW).row
    assert token(NextLogits(ROW), params, matcher=Odd()) == expected(params, masked)
    assert token(NextLogits(Rows().top_k()), params, matcher=Odd()) == expected(params, masked)


@pytest.mark.parametrize("of_chain", [False, True])
def test_log_probabilities_are_the_models_or_the_chains(of_chain: bool) -> None:
    params = SamplingParams(temperature=0.5, top_k=4, logprobs=3, post_sampling_probs=of_chain)
    scores: list[Any] = []
    sampled = token(NextLogits(ROW), params, matcher=Odd(), scores=scores)
    assert sampled == expected(params, Odd().masked(ROW).row)
    (entry,) = scores
    of_model = ROW.astype(np.float64) - np.log(np.exp(ROW.astype(np.float64)).sum())
    odd = sorted(range(1, 50, 2), key=lambda i: -ROW[i])[:4]
    of_four = ROW[odd].astype(np.float64) / 0.5
    of_four -= np.log(np.exp(of_four).sum())
    wanted = of_four[odd.index(sampled)] if of_chain else of_model[sampled]
    assert entry.logprob == pytest.approx(wanted, abs=1e-4)
    best = odd[:3] if of_chain else np.argsort(-ROW)[:3].tolist()
    assert [other.id for other in entry.top] == best


def test_no_score_is_made_that_is_not_wanted() -> None:
    scores: list[Any] = []
    assert token(NextLogits(ROW), OF_TOP, scores=scores) == expected(OF_TOP)
    assert token(NextLogits(ROW), SamplingParams(temperature=0.7, top_k=8, logprobs=0)) == expected(OF_TOP)
    assert scores == []


@pytest.mark.parametrize("flaw", [math.nan, math.inf])
def test_damaged_logits_name_the_model(flaw: float) -> None:
    row = ROW.copy()
    row[7] = flaw
    for params in (SamplingParams(temperature=0.0), OF_TOP, OF_ROW):
        with pytest.raises(WeightsError, match=r"model\.gguf: the model's logits are no numbers"):
            token(NextLogits(row), params)


def test_an_error_of_the_settings_stays_one() -> None:
    with pytest.raises(UsageError, match="logit_bias: wanted token ids below"):
        token(NextLogits(ROW), SamplingParams(logit_bias={50: 1.0}))
