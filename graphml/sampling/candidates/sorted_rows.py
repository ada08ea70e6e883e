"""The candidates of many rows at once, highest logit first: what filters leave of a batch's top k.

Knows ids, logits and counts; no filter and no setting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphml.sampling.candidates.candidates import Floats, Ids, Indices


@dataclass(frozen=True, eq=False)
class SortedRows:
    """ids int32 and logits float32 [rows, k]; the first counts[row], int64 [rows], are candidates."""

    ids: Ids
    logits: Floats
    counts: Indices

    @property
    def equal_count(self) -> int | None:
        """How many candidates each row has, if all have as many."""
        first = int(self.counts[0])
        return first if (self.counts == first).all() else None

    def heads(self, counts: Indices) -> SortedRows:
        """The first so many of each row, those that are there."""
        return replace(self, counts=np.minimum(self.counts, counts))

    def with_logits(self, logits: Floats) -> SortedRows:
        """The same tokens with other logits, in the same order."""
        return replace(self, logits=logits)

    def take(self, rows: Sequence[int]) -> SortedRows:
        """Some of the rows."""
        at = list(rows)
        return SortedRows(self.ids[at], self.logits[at], self.counts[at])


def column(values: Sequence[float]) -> NDArray[Any]:
    """One number for each row, float32 [rows, 1]."""
    return np.array(values, np.float32)[:, None]


def by_numbers(rows: SortedRows, numbers: Sequence[float], reached: bool = False) -> list[int]:
    """The id of each row at which the running sum of exp(logits) passes its number, 0 to 1, of the total.

    To the last bit as `choice.by_number` of the row alone: the sums run from the first to the last. reached:
    the sum need not pass it, as of `choice.as_llama_cpp`.
    """
    weights = rows.logits - rows.logits[:, :1]
    np.exp(weights, out=weights)
    weights[np.arange(weights.shape[1]) >= rows.counts[:, None]] = 0.0
    running = np.cumsum(weights, axis=1, dtype=np.float64)
    total = running[:, -1]
    target = np.array(numbers) * total
    if reached:
        at = (running < target[:, None]).sum(axis=1)
    else:
        at = (running <= np.minimum(target, np.nextafter(total, 0.0))[:, None]).sum(axis=1)
    tokens: list[int] = rows.ids[np.arange(len(at)), at].tolist()
    return tokens
