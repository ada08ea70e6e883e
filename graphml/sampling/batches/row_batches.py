"""Many rows sampled together: the top k of all by one call of a device, then each filter once for all rows.

The tokens are those of `NextLogits.sample`, row by row, by the same numbers, graphml's or llama.cpp's. Which
chains can is stated by their filters. Logit biases may come before them: biased tokens are hidden from the
top k, then added to it by the filter `logit_bias`, run over them alone. Knows no device and no request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from graphml.sampling.candidates.candidates import Candidates, Floats, Ids
from graphml.sampling.candidates.filter import Enough, Filter, NeedsTopK
from graphml.sampling.candidates.moment import Moment
from graphml.sampling.candidates.random_numbers import DIST, PeekableRandom
from graphml.sampling.candidates.sorted_rows import SortedRows, by_numbers
from graphml.sampling.chain.filter_order import CHAIN, filters_on
from graphml.sampling.chain.sampler import apply_of
from graphml.sampling.filters import logit_bias
from graphml.sampling.settings.params import LLAMA_CPP, SamplingParams
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


MOST_K = 64


TopRows: TypeAlias = Callable[[Floats, int, Mapping[int, Bits] | None], tuple[Ids, Floats, NDArray[np.bool_]]]
"""What `graphml.backend.TopRowsDevice` computes: rows float32 [r, n], k -> top k ids and logits, [r, k],
and which rows have a NaN. Masks: row -> the tokens that may come next; others count as -inf."""

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
