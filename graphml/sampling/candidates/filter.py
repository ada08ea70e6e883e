"""`Filter`: one filter of the sampler chain as a value, with what it needs and what a device can do of it.

Knows what a filter states. Each filter is one file in `graphml.sampling.filters`, which states its place too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, TypeAlias

from graphml.sampling.candidates.candidates import Candidates
from graphml.sampling.candidates.moment import Moment, SamplerVocabulary
from graphml.sampling.candidates.sorted_rows import SortedRows
from graphml.sampling.candidates.top_k_logits import TopK
from graphml.sampling.settings.params import SamplingParams

Apply: TypeAlias = Callable[[SamplingParams, Candidates, Moment], Candidates]
ApplyRows: TypeAlias = Callable[[Sequence[SamplingParams], SortedRows], SortedRows]
OnDevice: TypeAlias = Callable[[SamplingParams], Mapping[str, float] | None]
State: TypeAlias = tuple[float, ...]
"""What a filter keeps of a sequence: numbers, so that it can be copied and saved."""


def _never(_: SamplingParams) -> bool:
    return False


class Needs(Enum):
    """What a filter needs that the top k of a row is not."""

    ROW = auto()
    """All candidates that the filters before it leave; the whole row if it is the first that is on."""
    HISTORY = auto()
    """The same, and the token ids so far."""
    STATE = auto()
    """The same as `ROW`, and what it kept of the tokens before: it is `Stateful`."""


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
class Stateful:
    """What a filter keeps of a sequence from token to token; a value that is replaced, never changed.

    start: params -> what it begins with. after: params, the state, the candidates that came in and those that
    it left, the position of the sampled one in both -> the state behind this token. on_accept: whether that
    counts only if the sampled token is the one that is then accepted, in a chain with llama.cpp's rules.
    """

    start: Callable[[SamplingParams], State]
    after: Callable[[SamplingParams, State, Candidates, Candidates, tuple[int, int]], State]
    on_accept: bool = False


@dataclass(frozen=True, eq=False)
class ChainEntry:
    """A filter as an entry of a chain: `{"type": type, parameter: value, ...}`.

    fields: parameter -> the field of the params that it is. defaults: of fields, where they differ. is_on,
    apply: as the filter's, where llama.cpp's sampler does something else than the filter of `SamplingParams`.
    """

    type: str
    fields: Mapping[str, str]
    is_on: Callable[[SamplingParams], bool] | None = None
    apply: Apply | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Filter:
    """One filter of the sampler chain.

    params_read: the fields of `SamplingParams` that it reads. is_on: whether the params switch it on. apply:
    params, candidates, moment -> the candidates that it leaves; only a filter that `Needs.HISTORY` may read
    the moment's history. place: filters run in the order of their places, where `samplers` names no other.
    always: whether it runs where `samplers` does not name it, too.
    needs_vocabulary: whether it reads the texts of tokens by these params. adjusts: whether it changes logits
    and removes no token. on_device: params -> its part of the settings by which a device samples
    (`graphml.ir.ops.sampling.SETTINGS`), None for params that the device cannot follow. A filter without it
    is not on devices: where it is on, the host samples. rows: the same as `apply` for many sorted
    rows, each with its params, to the last bit; without it a chain runs row by row. keeps: its state.
    selects: whether it is the last, and tokens are sampled from what it leaves as by
    `std::discrete_distribution`. with_mirostat: whether it
    runs where Mirostat replaces the chain. entries: what it is called in `graphml.sampling.chain`.
    prepare: params, vocabulary -> what it works out once for a text, of work that no step should wait for.
    """

    name: str
    params_read: tuple[str, ...]
    is_on: Callable[[SamplingParams], bool]
    apply: Apply
    needs: Needs | NeedsTopK
    place: int = 0
    always: bool = False
    needs_vocabulary: Callable[[SamplingParams], bool] = _never
    adjusts: bool = False
    on_device: OnDevice | None = None
    rows: ApplyRows | None = None
    keeps: Stateful | None = None
    selects: bool = False
    with_mirostat: bool = False
    entries: tuple[ChainEntry, ...] = field(default=())
    prepare: Callable[[SamplingParams, SamplerVocabulary], Any] | None = None
