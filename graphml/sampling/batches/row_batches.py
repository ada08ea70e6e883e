"""Many rows sampled together: the top k of all by one call of a device, then each filter once for all rows.

The tokens are those of `NextLogits.sample`, row by row, by the same numbers, graphml's or llama.cpp's. Which
chains can is stated by their filters; biases may come before them. Knows no device and no request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from graphml.sampling.batches.biased_rows import RowBiases
from graphml.sampling.candidates.candidates import Floats, Ids
from graphml.sampling.candidates.filter import Enough, Filter, NeedsTopK
from graphml.sampling.candidates.random_numbers import PeekableRandom
from graphml.sampling.candidates.sampler_states import DIST
from graphml.sampling.candidates.sorted_rows import SortedRows, by_numbers
from graphml.sampling.chain.filter_order import CHAIN, filters_on
from graphml.sampling.filters import logit_bias
from graphml.sampling.settings.params import LLAMA_CPP, SamplingParams
from graphml.sampling.structured.packed_masks import Bits

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


@dataclass(frozen=True, eq=False)
class RowChain:
    """A chain that is run over many rows at once. filters: behind the biases; k: so many candidates."""

    filters: tuple[Filter, ...]
    k: int
    biases: RowBiases | None
    exact: bool
    """Whether the numbers are those of llama.cpp's generator."""


@lru_cache(maxsize=256)
def chain_of(params: SamplingParams) -> RowChain | None:
    """How the params are run over many rows at once; None where they cannot be."""
    on = filters_on(params, CHAIN)
    biased = bool(on) and on[0] is logit_bias.FILTER
    on = on[1:] if biased else on
    need = on[0].needs if on else None
    if (
        params.logprobs is not None
        or not isinstance(need, NeedsTopK)
        or any(filter_.rows is None for filter_ in on)
    ):
        return None
    if need.enough(params, MOST_K) is not Enough.ALWAYS:
        return None
    biases = RowBiases.of(params) if biased else None
    if biased and biases is None:
        return None
    exact = params.rng == LLAMA_CPP and not params.greedy
    return RowChain(on, 1 if params.greedy else params.top_k, biases, exact)


def sample_rows(
    logits: Floats, sampled_rows: Sequence[One], top_rows: TopRows, masks: Mapping[int, Bits] | None = None
) -> dict[int, int]:
    """Row -> token of those whose chains can; logits float32 [rows, n_vocab]; masks as of `TopRows`.

    Rows that are no numbers, or without any token left, are left to others, with their random numbers.
    """
    groups: dict[RowChain, list[One]] = {}
    for row in sampled_rows:
        chain = chain_of(row[1])
        if chain is not None and (chain.biases is None or chain.biases.highest < logits.shape[1]):
            groups.setdefault(chain, []).append(row)
    if not groups:
        return {}
    masks = dict(masks or {})
    of_structures = dict(masks)
    for chain, group in groups.items():
        if chain.biases is not None:
            chain.biases.hide([row for row, _, _ in group], masks, logits.shape[1])
    k = min(max(need.k for need in groups), logits.shape[1])
    ids, tops, has_nan = top_rows(logits, k, masks)
    for chain, group in groups.items():
        if chain.biases is not None:
            chain.biases.add([row for row, _, _ in group], logits, (ids, tops, has_nan), of_structures)
    usable = np.isfinite(tops[:, 0]) & ~has_nan
    tokens: dict[int, int] = {}
    for chain, group in groups.items():
        if members := [member for member in group if usable[member[0]]]:
            rows = [row for row, _, _ in members]
            tokens |= zip(
                rows, _tokens(chain, members, ids[rows, : chain.k], tops[rows, : chain.k]), strict=True
            )
    return tokens


def _tokens(chain: RowChain, members: Sequence[One], ids: Ids, tops: Floats) -> list[int]:
    """The token of each member, by its top k."""
    params = [row_params for _, row_params, _ in members]
    if chain.exact:
        numbers = [random.kept.generator(DIST, random.seed).double() for _, _, random in members]
    else:  # greedy ones use none
        numbers = [0.0 if row_params.greedy else random.random() for _, row_params, random in members]
    if ids.shape[1] == 1:  # whatever the chain does
        tokens: list[int] = ids[:, 0].tolist()
        return tokens
    rows = SortedRows(ids, tops, np.full(len(ids), ids.shape[1], np.int64))
    for filter_ in chain.filters:
        assert filter_.rows is not None
        rows = filter_.rows(params, rows)
    return by_numbers(rows, numbers, reached=chain.exact)
