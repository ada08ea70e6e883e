"""What is known of the logits after a sequence's last token: the whole row, or its top k.

Knows samplers; nothing of models, steps or text.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphml.sampling.candidates.candidates import Floats
from graphml.sampling.candidates.logprobs import TokenLogprobs, of_candidates, of_row
from graphml.sampling.candidates.random_numbers import PeekableRandom
from graphml.sampling.candidates.top_k_logits import TopK
from graphml.sampling.chain.sampler import sampler_of
from graphml.sampling.settings.params import SamplingParams


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
