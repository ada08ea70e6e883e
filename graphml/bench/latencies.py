"""Times that a client sees: to the first token, and between tokens, as percentiles. Knows numbers alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

PERCENTILES = (50, 95, 99)


@dataclass(frozen=True)
class AnswerTimes:
    """A request as its client saw it: when it was submitted, and when each token arrived."""

    arrived_s: float
    token_s: tuple[float, ...]
    n_prompt: int
    n_cached: int

    @property
    def ttft_s(self) -> float:
        """Seconds to the first token."""
        return self.token_s[0] - self.arrived_s

    @property
    def itl_s(self) -> list[float]:
        """Seconds between tokens."""
        return [float(gap) for gap in np.diff(self.token_s)]


def ttft_ms(answers: Iterable[AnswerTimes]) -> dict[str, float]:
    """Percentiles over the answers, by name."""
    return percentiles([answer.ttft_s for answer in answers])


def itl_ms(answers: Iterable[AnswerTimes]) -> dict[str, float]:
    """Percentiles over all gaps between tokens, by name."""
    return percentiles([gap for answer in answers for gap in answer.itl_s])


def percentiles(seconds: Sequence[float]) -> dict[str, float]:
    """As milliseconds, by name; none of nothing."""
    if not seconds:
        return {}
    values = np.percentile(seconds, PERCENTILES)
    return {f"p{which}": 1e3 * float(value) for which, value in zip(PERCENTILES, values, strict=True)}


def three(values: dict[str, float]) -> str:
    """The percentiles as a cell of a table."""
    return " / ".join(f"{value:.1f}" for value in values.values())
