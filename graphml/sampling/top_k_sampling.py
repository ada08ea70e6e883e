"""Sampling that sees the best tokens of a row alone, where these decide which token is drawn.

What is chosen is what the chain would choose of the whole row, to the last bit: filters get the same numbers
in the same order, and where the rest of the row could matter nothing is chosen. Knows no device.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from graphml.ir.ops.sampling import ANY
from graphml.sampling.candidates import Candidates, Floats, Ids
from graphml.sampling.params import SamplingParams

Settings: TypeAlias = tuple[float, ...]
"""How a device draws a token: `graphml.ir.ops.sampling.SETTINGS`."""

_MARGIN = 2e-5
"""How far from an edge between two tokens the sum of probabilities must be: sums differ by their order."""
_ROW_MARGIN = 5e-6
"""The same for shares of a row that a device has drawn from: it adds up in pairs. A third is what WGSL lets
exp be off by, the rest what float32 rounds; see decision 21."""


_COLDEST = 1e-3
"""The lowest temperature that devices draw by: below it numbers leave float32's range."""


@dataclass(frozen=True)
class Drawn:
    """What a device drew from a whole row by `settings`: an id, and the shares of 1 before it and with it."""

    id: int
    before: float
    upto: float
    settings: Settings


@dataclass(frozen=True, eq=False)
class Best:
    """The best tokens of a row, the largest logit first, equals by id.

    ids int32 [k], logits float32 [k]; log_sum: the logarithm of the sum of exp(logits) of the whole row; row:
    gives the whole row, float32 [n_vocab], or None where it is gone; drawn: by the device, if it did.
    """

    ids: Ids
    logits: Floats
    log_sum: float
    n_vocab: int
    row: Callable[[], Floats | None] = lambda: None
    drawn: Drawn | None = None

    @property
    def usable(self) -> bool:
        """Whether the whole row is made of numbers, of which one at least is no minus infinity."""
        return math.isfinite(self.log_sum)


def may_decide(params: SamplingParams, n_best: int, surely: bool = False) -> bool:
    """Whether so many best tokens are enough, often at least: else the row is better read at once.

    surely: always, since a step cannot be taken again for its row, as of a recurrent model.
    """
    if params.logit_bias or params.penalised:
        return False
    if surely:
        return decides_always(params, n_best)
    few = params.top_k == 0 and params.typical_p == 1.0 and (params.top_p < 1.0 or params.min_p > 0.0)
    return decides_always(params, n_best) or few or draws_row(params)


def decides_always(params: SamplingParams, n_best: int) -> bool:
    """Whether so many best tokens are enough whatever the row is."""
    return params.greedy or 0 < params.top_k <= n_best


def draws_row(params: SamplingParams) -> bool:
    """Whether a token is drawn from the whole row, or from what min_p leaves: by temperature, in id order."""
    if params.greedy or params.logit_bias or params.penalised or params.dynatemp_range > 0.0:
        return False
    every = params.top_k == 0 and params.top_p == 1.0 and params.typical_p == 1.0
    return every and params.temperature >= _COLDEST and (params.min_p == 0.0 or params.min_keep <= 1)


def drawn_of_row(params: SamplingParams, best: Best, number: float) -> int | None:
    """The id that a device drew, if the sampler would draw it by this number; None near an edge between two.

    The sums of both differ by what float32 rounds: of the row in its sums, of a logit where it is divided by
    the temperature.
    """
    drawn = best.drawn
    if drawn is None or not best.usable or not draws_row(params):
        return None
    if drawn.settings != draw_settings(params, number, len(best.ids)):
        return None
    margin = _ROW_MARGIN + (abs(best.log_sum) + 16.0) / params.temperature * 2.0**-24
    return drawn.id if drawn.before + margin <= number <= drawn.upto - margin else None


def first_choice(params: SamplingParams, best: Best) -> Candidates | None:
    """What the chain's first choosing step leaves of the whole row, or None where the best do not tell."""
    if not may_decide(params, len(best.ids)) or not best.usable:
        return None
    found = Candidates(best.ids, best.logits, is_sorted=True)
    if params.greedy:
        return found.head(1)
    if params.top_k > 0:
        return found.head(min(params.top_k, best.n_vocab))
    if params.top_p < 1.0:
        return _top_p(params, found, best)
    return _min_p(params, found, best) if params.min_p > 0.0 else None


def _top_p(params: SamplingParams, found: Candidates, best: Best) -> Candidates | None:
    running = np.cumsum(np.exp(found.logits.astype(np.float64) - best.log_sum))
    margin = _MARGIN + abs(best.log_sum) * 2.0**-22
    needed = int(np.searchsorted(running, params.top_p)) + 1
    near = np.abs(running - params.top_p).min() <= margin
    kept = max(needed, params.min_keep)
    whole = len(found) == best.n_vocab
    if near or (max(needed, kept) > len(found) and not whole):
        return None
    return found.head(kept)


def _min_p(params: SamplingParams, found: Candidates, best: Best) -> Candidates | None:
    lowest = found.logits[0] + np.float32(math.log(params.min_p))
    count = int((found.logits >= lowest).sum())
    if len(found) < best.n_vocab and max(count + 1, params.min_keep) > len(found):
        return None
    if count < params.min_keep:
        return found.head(params.min_keep)
    kept = found.head(count)  # of the whole row they are taken in the order in which they stand there
    return kept.take(np.argsort(kept.ids), is_sorted=False)


def draw_settings(params: SamplingParams, number: float, n_best: int) -> Settings | None:
    """How a device would draw the same (`graphml.ir.ops.sampling.SETTINGS`); None where it cannot tell.

    number: what the random generator gives for this token. The device draws for the step after; what it drew
    is checked against the sampler, so it must be right nearly always, no more. Of a row it tells shares of
    what the filter leaves, so `lowest` is to the last bit what the filter adds.
    """
    if params.greedy:
        return (1.0, 1.0, 1.0, ANY, 0.0) if may_decide(params, n_best) else None
    if not may_decide(params, n_best) or params.typical_p < 1.0:
        return None
    if params.dynatemp_range > 0.0 or params.temperature < _COLDEST:
        return None
    if params.min_keep > 1 and (params.top_p < 1.0 or params.min_p > 0.0):
        return None
    lowest = math.log(params.min_p) if params.min_p > 0.0 else ANY
    return (1.0 / params.temperature, float(params.top_k), params.top_p, lowest, number)
