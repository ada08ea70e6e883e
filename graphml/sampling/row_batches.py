"""Many rows sampled together: the top k of all by one call of a device, then each filter once for all rows.

The tokens are those of `NextLogits.sample`, row by row, by the same numbers. Which chains can is stated by
their filters. Knows no device and no request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from graphml.sampling.candidates import Floats, Ids
from graphml.sampling.filter import Enough, Filter
from graphml.sampling.filter_order import CHAIN, filters_on
from graphml.sampling.params import SamplingParams
from graphml.sampling.random_numbers import PeekableRandom
from graphml.sampling.sorted_rows import SortedRows, by_numbers
from graphml.sampling.structured.packed_masks import Bits
from graphml.sampling.top_k_sampling import masked_top_k_enough

MOST_K = 64


class TopRows(Protocol):
    """What `graphml.backend.TopRowsDevice` computes."""

    def __call__(
        self, rows: Floats, k: int, masks: Mapping[int, Bits] | None = None
    ) -> tuple[Ids, Floats, NDArray[np.bool_]]:
        """Rows float32 [r, n] and k -> the top k's ids and logits, [r, k], and which rows have a NaN.

        masks: row -> the tokens that may come next; others count as -inf.
        """
        ...


One: TypeAlias = tuple[int, SamplingParams, PeekableRandom]
"""A row's number, and the params and random numbers of its sequence."""


@lru_cache(maxsize=64)
def chain_of(params: SamplingParams) -> tuple[Filter, ...] | None:
    """The filters of a chain that is run over many rows at once; None for others."""
    if params.rng != "graphml" or masked_top_k_enough(params, MOST_K) is not Enough.ALWAYS:
        return None
    on = filters_on(params, CHAIN)
    return on if all(one.rows is not None for one in on) else None


def sample_rows(
    logits: Floats, given: Sequence[One], top_rows: TopRows, masks: Mapping[int, Bits] | None = None
) -> dict[int, int]:
    """Row -> token of those whose chains can; logits float32 [rows, n_vocab]; masks as of `TopRows`.

    Rows that are no numbers, or without any token left, are left to others, with their random numbers.
    """
    groups: dict[tuple[tuple[Filter, ...], int], list[One]] = {}
    for one in given:
        params = one[1]
        chain = chain_of(params)
        if chain is not None:
            k = 1 if params.greedy else min(params.top_k, logits.shape[1])
            groups.setdefault((chain, k), []).append(one)
    if not groups:
        return {}
    ids, tops, has_nan = top_rows(logits, max(k for _, k in groups), masks)
    usable = np.isfinite(tops[:, 0]) & ~has_nan
    found: dict[int, int] = {}
    for (chain, k), group in groups.items():
        members = [one for one in group if usable[one[0]]]
        if members:
            rows = [row for row, _, _ in members]
            if k == 1:  # whatever the chain does
                _numbers(members)
                found |= zip(rows, ids[rows, 0].tolist(), strict=True)
                continue
            of = SortedRows(ids[rows, :k], tops[rows, :k], np.full(len(rows), k, np.int64))
            found |= zip(rows, _sampled(chain, of, members), strict=True)
    return found


def _sampled(chain: Sequence[Filter], rows: SortedRows, members: Sequence[One]) -> list[int]:
    params = [one for _, one, _ in members]
    for one in chain:
        assert one.rows is not None
        rows = one.rows(params, rows)
    return by_numbers(rows, _numbers(members))


def _numbers(members: Sequence[One]) -> list[float]:
    """The next random number of each; greedy ones use none."""
    return [0.0 if one.greedy else random.random() for _, one, random in members]
