"""The sampler chain: all filters in llama.cpp's order, and which of them params switch on.

Knows the order; what a filter does and needs is in its own file.
"""

from __future__ import annotations

from graphml.sampling.filter import Filter
from graphml.sampling.filters import (
    dynamic_temperature,
    logit_bias,
    min_p,
    penalties,
    temperature,
    top_k,
    top_p,
    typical,
)
from graphml.sampling.params import SamplingParams

CHAIN: tuple[Filter, ...] = (
    logit_bias.FILTER,
    penalties.FILTER,
    top_k.FILTER,
    typical.FILTER,
    top_p.FILTER,
    min_p.FILTER,
    dynamic_temperature.FILTER,
    temperature.FILTER,
)
"""Filters that adjust logits come first."""


def filters_on(params: SamplingParams, filters: tuple[Filter, ...]) -> tuple[Filter, ...]:
    """The filters, such as those of `CHAIN`, that `params` switches on, in order.

    A greedy chain goes from the penalties straight to the highest logit: of the filters between only typical
    could remove it, and there temperature 0, which the caller asked for, counts more. llama.cpp differs in
    that one case.
    """
    on = (one for one in filters if one.is_on(params))
    if params.greedy:
        return tuple(one for one in on if one.adjusts or one is temperature.FILTER)
    return tuple(on)
