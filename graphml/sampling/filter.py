"""`Filter`: one filter of the sampler chain as a value, with what it needs and what a device can do of it.

Knows what a filter states. Each filter is one file in `graphml.sampling.filters`; their order is in
`filter_order`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeAlias

from graphml.sampling.candidates import Candidates
from graphml.sampling.params import SamplingParams
from graphml.sampling.top_k_logits import TopK

Apply: TypeAlias = Callable[[SamplingParams, Candidates, Sequence[int]], Candidates]
OnDevice: TypeAlias = Callable[[SamplingParams], Mapping[str, float] | None]


class Needs(Enum):
    """What a filter needs that the top k of a row is not."""

    ROW = auto()
    """All candidates that the filters before it leave; the whole row if it is the first that is on."""
    HISTORY = auto()
    """The same, and the token ids so far."""


class Enough(Enum):
    """Whether the k largest logits of a row are enough to know what a filter leaves of the whole row."""

    NEVER = auto()
    OFTEN = auto()
    """It depends on the row."""
    ALWAYS = auto()


@dataclass(frozen=True, eq=False)
class NeedsTopK:
    """The need of a filter that can do with the top k of a row if it is the first that is on.

    enough: params, k -> whether k logits are enough. candidates: params, the top k -> what the filter leaves
    of the whole row, to the last bit; None where the top k is not enough to know. Not called if `NEVER`.
    """

    enough: Callable[[SamplingParams, int], Enough]
    candidates: Callable[[SamplingParams, TopK], Candidates | None]


@dataclass(frozen=True, eq=False)
class Filter:
    """One filter of the sampler chain.

    params_read: the fields of `SamplingParams` that it reads. is_on: whether the params switch it on. apply:
    params, candidates, history -> the candidates that it leaves; only a filter that `Needs.HISTORY` may read
    the history. adjusts: whether it changes logits of the whole vocabulary, in id order, before any filter
    removes a token. on_device: params -> its part of the settings by which a device samples
    (`graphml.ir.ops.sampling.SETTINGS`), None for params that the device cannot follow. A filter without it
    is not on devices: where it is on, the host samples.
    """

    name: str
    params_read: tuple[str, ...]
    is_on: Callable[[SamplingParams], bool]
    apply: Apply
    needs: Needs | NeedsTopK
    adjusts: bool = False
    on_device: OnDevice | None = None
