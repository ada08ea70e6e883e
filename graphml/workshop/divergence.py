"""How far a model's predictions are from those of a base model, by the figures of llama-perplexity.

KL = sum of p_base (ln p_base - ln p) over the words with ln p_base above -16, in natural logarithms; delta p
is the right token's probability minus the base's. Uncertainties are standard errors; those of a ratio or a
difference use the covariance of both losses. Knows rows of numbers; nothing of models or files.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from graphml.ir.op import Floats

DEEPEST = -16.0
"""Words that the base gives less than e to this are left out of the sum."""
FEWEST = 10
"""Values up to which no uncertainty is said."""
Values = NDArray[np.float64]
KLD_PERCENTILES = (99.9, 99.0, 95.0, 90.0, None, 10.0, 5.0, 1.0, 0.1)
P_PERCENTILES = (99.9, 99.0, 95.0, 90.0, 75.0, None, 25.0, 10.0, 5.0, 1.0, 0.1)


@dataclass(frozen=True)
class Figure:
    """A statistic and its standard error, None where it has none."""

    value: float
    error: float | None = None

    def scaled(self, factor: float) -> Figure:
        """Both times a factor."""
        return Figure(factor * self.value, None if self.error is None else factor * self.error)


@dataclass(frozen=True)
class RowsCompared:
    """Of each position: both losses, KL divergence, delta p, whether the most probable word is the same."""

    loss: Values
    base_loss: Values
    divergence: Values
    delta: Values
    same_top: NDArray[np.bool_]


def compare_rows(logits: Floats, base: Floats, targets: NDArray[np.integer]) -> RowsCompared:
    """logits [n, vocabulary], the base's ln p of the same positions, and the ids that really came [n]."""
    greatest = logits.max(axis=1, keepdims=True)
    sums = np.exp(logits - greatest).sum(axis=1, dtype=np.float64, keepdims=True)
    log_probs = logits - (greatest + np.log(sums).astype(np.float32))
    at = np.arange(len(targets))
    loss, base_loss = -log_probs[at, targets], -base[at, targets]
    parts = np.where(base > np.float32(DEEPEST), np.exp(base) * (base - log_probs), np.float32(0))
    return RowsCompared(
        loss.astype(np.float64),
        base_loss.astype(np.float64),
        parts.sum(axis=1, dtype=np.float64),
        np.exp(-loss).astype(np.float64) - np.exp(-base_loss),
        logits.argmax(axis=1) == base.argmax(axis=1),
    )


class Divergence:
    """All positions that were compared, and their statistics."""

    def __init__(self) -> None:
        self._rows: list[RowsCompared] = []

    def add(self, rows: RowsCompared) -> None:
        """Those of further positions."""
        self._rows.append(rows)

    @property
    def count(self) -> int:
        """Positions."""
        return sum(len(each.loss) for each in self._rows)

    def running(self) -> dict[str, Figure]:
        """The statistics that are printed after each chunk."""
        loss, base_loss, divergence, delta, same = self._columns()
        return {
            "ppl": _exponential(_mean(loss)),
            "ln_ppl_ratio": _ratio(loss, base_loss),
            "kld": _mean(divergence),
            "rms_delta_p_percent": _root_mean_square(delta).scaled(100),
            "same_top_percent": _share(same).scaled(100),
        }

    def statistics(self) -> dict[str, Figure]:
        """Name -> figure, in the order in which llama-perplexity prints them."""
        loss, base_loss, divergence, delta, same = self._columns()
        ppl, base_ppl = _exponential(_mean(loss)), _exponential(_mean(base_loss))
        ratio = _ratio(loss, base_loss)
        errors = (_mean(loss).error or 0.0) * (_mean(base_loss).error or 0.0)
        covariance = _covariance(loss, base_loss)
        difference = math.sqrt(
            max(
                (ppl.error or 0) ** 2
                + (base_ppl.error or 0) ** 2
                - 2 * ppl.value * base_ppl.value * covariance,
                0,
            )
        )
        return {
            "Mean PPL(Q)": ppl,
            "Mean PPL(base)": base_ppl,
            "Cor(ln(PPL(Q)), ln(PPL(base)))": Figure(100 * covariance / errors if errors else math.nan),
            "Mean ln(PPL(Q)/PPL(base))": ratio,
            "Mean PPL(Q)/PPL(base)": _exponential(ratio),
            "Mean PPL(Q)-PPL(base)": Figure(ppl.value - base_ppl.value, difference),
            "Mean KLD": _mean(divergence),
            **_percentiles("KLD", divergence, KLD_PERCENTILES),
            "Mean delta p": _mean(delta).scaled(100),
            **_percentiles("delta p", 100 * delta, P_PERCENTILES),
            "RMS delta p": _root_mean_square(delta).scaled(100),
            "Same top p": _share(same).scaled(100),
        }

    def _columns(self) -> tuple[Values, Values, Values, Values, NDArray[np.bool_]]:
        rows = self._rows
        return (
            np.concatenate([each.loss for each in rows]),
            np.concatenate([each.base_loss for each in rows]),
            np.concatenate([each.divergence for each in rows]),
            np.concatenate([each.delta for each in rows]),
            np.concatenate([each.same_top for each in rows]),
        )


def _mean(values: Values) -> Figure:
    variance = float((values**2).mean() - values.mean() ** 2)
    known = variance > 0 and len(values) > FEWEST
    return Figure(float(values.mean()), math.sqrt(variance / (len(values) - 1)) if known else 0.0)


def _covariance(a: Values, b: Values) -> float:
    """Of the means of both."""
    if len(a) < FEWEST:
        return 0.0
    return float((a * b).mean() - a.mean() * b.mean()) / (len(a) - 1)


def _ratio(loss: Values, base_loss: Values) -> Figure:
    """ln of the ratio of both perplexities."""
    mean, base_mean = _mean(loss), _mean(base_loss)
    squares = (mean.error or 0) ** 2 + (base_mean.error or 0) ** 2 - 2 * _covariance(loss, base_loss)
    return Figure(mean.value - base_mean.value, math.sqrt(max(squares, 0.0)))


def _exponential(figure: Figure) -> Figure:
    value = math.exp(min(figure.value, 700.0))
    return Figure(value, value * (figure.error or 0.0))


def _root_mean_square(values: Values) -> Figure:
    mean = _mean(values**2)
    root = math.sqrt(mean.value)
    return Figure(root, 0.5 / root * (mean.error or 0.0) if root else 0.0)


def _share(hits: NDArray[np.bool_]) -> Figure:
    share = float(hits.mean())
    return Figure(share, math.sqrt(share * (1 - share) / max(len(hits) - 1, 1)))


def _percentiles(of: str, values: Values, percents: tuple[float | None, ...]) -> dict[str, Figure]:
    """The greatest, these percentiles, linear between neighbours, None being the median, and the least."""
    names = ["Median" if percent is None else f"{percent:.1f}%" for percent in percents]
    numbers = np.percentile(values, [50.0 if percent is None else percent for percent in percents])
    middle = {f"{name} {of}": Figure(float(number)) for name, number in zip(names, numbers, strict=True)}
    return {
        f"Maximum {of}": Figure(float(values.max())),
        **middle,
        f"Minimum {of}": Figure(float(values.min())),
    }
