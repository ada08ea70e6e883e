"""What is known of the logits after a sequence's last token, the whole row or its top k, and what follows.

Knows samplers and their errors; nothing of steps or text.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from graphml.errors import UsageError, WeightsError
from graphml.sampling.candidates.candidates import Floats
from graphml.sampling.candidates.logprobs import TokenLogprobs, of_candidates, of_row
from graphml.sampling.candidates.random_numbers import PeekableRandom
from graphml.sampling.candidates.top_k_logits import TopK
from graphml.sampling.chain.sampler import flaw_of, sampler_of
from graphml.sampling.settings.params import SamplingParams


class Masks(Protocol):
    """What a text must follow: a `Matcher`."""

    def masked(self, row: Floats) -> NextLogits:
        """The row with -inf for tokens that may not follow."""


class NextLogits:
    """Made of None where nothing is known. row: float32 [n_vocab], where it was read; nobody writes to it."""

    def __init__(self, logits: Floats | TopK | None = None) -> None:
        self._top = logits if isinstance(logits, TopK) else None
        self.row: Floats | None = None if isinstance(logits, TopK) else logits

    @property
    def known(self) -> bool:
        """Whether there is anything to sample from."""
        return self.row is not None or self._top is not None

    @property
    def top_k(self) -> TopK | None:
        """The top k, where they are known."""
        return self._top

    def whole_row(self) -> Floats | None:
        """The row, read where only the top k was so far; None where it is gone, or nothing is known."""
        if self.row is None and self._top is not None:
            self.row = self._top.row()
        return self.row

    def sample(self, params: SamplingParams, history: Sequence[int], numbers: PeekableRandom) -> int | None:
        """The next token: from the top k where it is enough, else from the row. None where that is gone."""
        if self.row is None and self._top is not None:
            token = sampler_of(params).sample_top_k(self._top, numbers)
            if token is not None:
                return token
        row = self.whole_row() if self.row is None else self.row
        if row is None:
            return None
        return sampler_of(params).sample(row, history, numbers)

    def sample_scored(
        self,
        params: SamplingParams,
        history: Sequence[int],
        numbers: PeekableRandom,
        model: NextLogits,
        scores: list[TokenLogprobs],
    ) -> int | None:
        """The same from the row, with an entry for `scores`; model: what is known without any mask."""
        row, models = self.whole_row(), model.whole_row()
        if row is None or models is None:
            return None
        token, left = sampler_of(params).sample_and_left(row, history, numbers)
        n_top, words = params.logprobs or 0, numbers.vocabulary
        if params.post_sampling_probs:
            scores.append(of_candidates(left, token, n_top, words))
        else:
            scores.append(of_row(models, token, n_top, words))
        return token


NOTHING_KNOWN = NextLogits()


def next_token(
    known: NextLogits,
    params: SamplingParams,
    history: Sequence[int],
    numbers: PeekableRandom,
    path: Path,
    matcher: Masks | None = None,
    scores: list[TokenLogprobs] | None = None,
) -> int | None:
    """Sample a token; None where what is known is not enough. WeightsError where logits are no numbers.

    matcher: of what the text must follow, behind the tokens that were sampled. scores: gets the token's
    log-probabilities, where the params ask for them.
    """
    try:
        if scores is not None and params.logprobs is not None:
            row = None if matcher is None else known.whole_row()
            seen = known if matcher is None or row is None else matcher.masked(row)
            return seen.sample_scored(params, history, numbers, known, scores)
        if matcher is None:
            return known.sample(params, history, numbers)
        row = known.whole_row()
        return None if row is None else matcher.masked(row).sample(params, history, numbers)
    except UsageError:
        flaw = None if known.row is None else flaw_of(known.row)
        if flaw is None:
            raise
    raise WeightsError(no_numbers(path, flaw))


def no_numbers(path: Path, flaw: str, what: str = "logits") -> str:
    """What to say of a model whose logits, or other numbers, have a flaw, as of `flaw_of`."""
    return (
        f"{path}: the model's {what} are no numbers: {flaw}. Its tensors are damaged or not those of this "
        "architecture, or numbers leave the range of the cache's dtype (kv); `graphml compare` shows where "
        "they begin"
    )
