"""Sampling without the whole row: from its top k where that is enough, or the token that a device sampled.

The token is that of the whole row, to the last bit: filters get the same numbers in the same order, and where
the rest of the row could matter there is none. All follows from what the filters state. Knows no device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from graphml.ir.ops.sampling import ANY, SETTINGS
from graphml.sampling.candidates.candidates import Candidates
from graphml.sampling.candidates.filter import Enough, Filter, Needs, NeedsTopK
from graphml.sampling.candidates.top_k_logits import DeviceSettings, TopK
from graphml.sampling.chain import filter_order
from graphml.sampling.settings.params import SamplingParams

_OFF = {"inverse_temperature": 1.0, "top_k": 0.0, "top_p": 1.0, "lowest": ANY}
_MORE = (Needs.HISTORY, Needs.STATE)
_ROW_MARGIN = 5e-6
"""How far from an edge between two tokens of a row a number must be, in shares of the row that a device
sampled from: it adds up in pairs. A third is what WGSL lets exp be off by, the rest what float32 rounds; see
decision 21."""


@dataclass(frozen=True, eq=False)
class _Stated:
    """What the filters that are on state together.

    first: the need of the first, None where the top k is never enough. settings: those of all, for a device;
    None unless each filter is on devices, with settings of its own.
    """

    first: NeedsTopK | None
    settings: Mapping[str, float] | None

    @property
    def samples_row(self) -> bool:
        """See `device_samples_row`."""
        settings = self.settings
        return (
            settings is not None and settings.get("top_k", 0.0) <= 0.0 and settings.get("top_p", 1.0) >= 1.0
        )


def _stated(params: SamplingParams, filters: tuple[Filter, ...]) -> _Stated:
    if params.structured or params.logprobs is not None:
        return _Stated(None, None)
    return _of_filters(params, filters)


@lru_cache(maxsize=64)
def _of_filters(params: SamplingParams, filters: tuple[Filter, ...]) -> _Stated:
    on = filter_order.filters_on(params, filters)
    need = on[0].needs if on else None
    if not isinstance(need, NeedsTopK) or any(filter_.adjusts or filter_.needs in _MORE for filter_ in on):
        need = None
    if params.rng != "graphml" and not params.greedy:
        return _Stated(None, None)  # other numbers, and the order of the row counts
    return _Stated(need, _settings_of(params, on))


def _settings_of(params: SamplingParams, on: Sequence[Filter]) -> Mapping[str, float] | None:
    settings: dict[str, float] = {}
    for filter_ in on:
        stated = None if filter_.on_device is None else filter_.on_device(params)
        if stated is None or stated.keys() & settings.keys() or not stated.keys() <= set(SETTINGS):
            return None
        settings.update(stated)
    return settings


def top_k_enough(params: SamplingParams, k: int) -> Enough:
    """Whether the k largest logits of a row are enough to sample: as the first filter that is on states."""
    first = _stated(params, filter_order.CHAIN).first
    return Enough.NEVER if first is None else first.enough(params, k)


def samples_without_row(params: SamplingParams, k: int, always: bool = False) -> bool:
    """Whether the top k, or what a device samples, is at least often enough; else the row is read at once.

    always: whether the top k must be enough for every row, where a step cannot run again for its row, as of
    a recurrent model.
    """
    enough = top_k_enough(params, k)
    return enough is Enough.ALWAYS if always else enough is not Enough.NEVER or device_samples_row(params)


def candidates_of_top_k(params: SamplingParams, top: TopK) -> Candidates | None:
    """What the first filter that is on leaves of the whole row, or None where the top k is not enough."""
    first = _stated(params, filter_order.CHAIN).first
    if first is None or not top.usable or first.enough(params, len(top.ids)) is Enough.NEVER:
        return None
    return first.candidates(params, top)


def device_settings(params: SamplingParams, number: float, k: int) -> DeviceSettings | None:
    """How a device samples the same (`graphml.ir.ops.sampling.SETTINGS`); None where it cannot.

    number: the random number of this token. The device samples for the step after, and the host checks what
    it sampled, so it must be right nearly always, no more.
    """
    stated = _stated(params, filter_order.CHAIN).settings
    if stated is None or not samples_without_row(params, k):
        return None
    settings = {**_OFF, "number": number, **stated}
    return tuple(settings[name] for name in SETTINGS)


def device_samples_row(params: SamplingParams) -> bool:
    """Whether a device samples from the whole row, or from what min_p leaves, in the order of the ids."""
    return _stated(params, filter_order.CHAIN).samples_row


def device_sample(params: SamplingParams, top: TopK, number: float) -> int | None:
    """The id that a device sampled, if the sampler would by this number; None near an edge between two.

    The sums of both differ by what float32 rounds: of the row in its sums, of a logit where it is divided by
    the temperature.
    """
    sampled = top.sampled
    if sampled is None or not top.usable or not device_samples_row(params):
        return None
    if sampled.settings != device_settings(params, number, len(top.ids)):
        return None
    margin = _ROW_MARGIN + (abs(top.log_sum) + 16.0) / params.temperature * 2.0**-24
    return sampled.id if sampled.before + margin <= number <= sampled.upto - margin else None
