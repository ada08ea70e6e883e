"""What is known of what follows a session's last token: all logits, or the best of them.

Knows samplers; nothing of models, steps or text.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphml.sampling import Best, Foreseen, SamplingParams, sampler_of
from graphml.sampling.candidates import Floats


class Follows:
    """Made of nothing where nothing is known. logits: float32 [n_vocab], a copy, where they were read."""

    def __init__(self, what: Floats | Best | None = None) -> None:
        self._best = what if isinstance(what, Best) else None
        self.logits: Floats | None = None if what is None or isinstance(what, Best) else what.copy()

    @property
    def known(self) -> bool:
        """Whether there is anything to choose by."""
        return self.logits is not None or self._best is not None

    def choose(self, params: SamplingParams, history: Sequence[int], numbers: Foreseen) -> int | None:
        """The token that follows: by the best where they tell, else by all logits. None: they are gone."""
        if self.logits is None and self._best is not None:
            token = sampler_of(params).sample_best(self._best, numbers)
            if token is not None:
                return token
            self.logits = self._best.row()
        if self.logits is None:
            return None
        return sampler_of(params).sample(self.logits, history, numbers)
