"""Logit biases of rows that are sampled together: biased tokens are hidden from the top k, then added to it.

The logits are those of the filter `logit_bias`, which is run over the biased tokens alone. Knows biases and
the top k of rows; no chain.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from graphml.sampling.candidates.candidates import Candidates, Floats, Ids
from graphml.sampling.candidates.moment import Moment
from graphml.sampling.chain.sampler import apply_of
from graphml.sampling.filters import logit_bias
from graphml.sampling.settings.params import SamplingParams
from graphml.sampling.structured.packed_masks import Bits, packed, unpacked

_Tops: TypeAlias = tuple[Ids, Floats, NDArray[np.bool_]]
"""The top k of all rows, which are written to: ids, logits, and which rows have a NaN."""


@dataclass(frozen=True, eq=False)
class RowBiases:
    """The biases of params. tokens: int32 [n], rising; forbids: whether all of them are -inf."""

    params: SamplingParams
    tokens: Ids
    forbids: bool

    @staticmethod
    def of(params: SamplingParams) -> RowBiases | None:
        """Those of params; None where they are no mapping, as in entries of a chain."""
        biases = params.logit_bias
        if not isinstance(biases, Mapping) or not biases:
            return None
        tokens = np.array(sorted(biases), np.int32)
        return RowBiases(params, tokens, all(bias == -np.inf for bias in biases.values()))

    @property
    def highest(self) -> int:
        """The highest biased token."""
        return int(self.tokens[-1])

    def hide(self, rows: Sequence[int], masks: MutableMapping[int, Bits], n_vocab: int) -> None:
        """Have the masks of rows refuse the biased tokens."""
        bits = _others(self, n_vocab)
        for row in rows:
            own = masks.get(row)
            masks[row] = bits if own is None else own[: len(bits)] & bits[: len(own)]

    def add(self, rows: Sequence[int], logits: Floats, tops: _Tops, structures: Mapping[int, Bits]) -> None:
        """Put the biased tokens of rows, those that a structure allows, at their places in the top k."""
        ids, highest, flawed = tops
        before = logits[np.array(rows)[:, None], self.tokens]
        for at, row in enumerate(rows):
            if row in structures:
                allowed = unpacked(structures[row], logits.shape[1])[self.tokens]
                before[at] = np.where(allowed, before[at], np.minimum(before[at], -np.inf))
        if self.forbids:
            flawed[rows] |= (before == np.inf).any(axis=1)  # NaN by the bias
            return
        apply, moment = apply_of(logit_bias.FILTER, self.params), Moment((), logits.shape[1])
        with np.errstate(over="ignore", invalid="ignore"):  # of rows that are then left to others
            after = np.stack(
                [
                    apply(self.params, Candidates(self.tokens, row_logits), moment).logits
                    for row_logits in before
                ]
            )
        flawed[rows] |= np.isnan(after).any(axis=1)
        every = np.concatenate([highest[rows], after], axis=1)
        of = np.concatenate([ids[rows], np.broadcast_to(self.tokens, after.shape)], axis=1)
        order = np.lexsort((of, -every), axis=1)[:, : ids.shape[1]]
        ids[rows] = np.take_along_axis(of, order, axis=1)
        highest[rows] = np.take_along_axis(every, order, axis=1)


@lru_cache(maxsize=256)
def _others(biases: RowBiases, n_vocab: int) -> Bits:
    """The bits of all tokens without a bias."""
    mask = np.ones(n_vocab, bool)
    mask[biases.tokens] = False
    return packed(mask)
