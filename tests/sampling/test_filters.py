"""What each filter of the chain states is true, and where a token is sampled follows from it."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import pytest

from graphml.ir.ops.sampling import SETTINGS
from graphml.sampling import (
    Enough,
    Filter,
    Needs,
    NeedsTopK,
    PeekableRandom,
    SamplingParams,
    TopK,
    device_samples_row,
    device_settings,
    filters,
    make_sampler,
    samples_without_row,
    top_k_enough,
)
from graphml.sampling.candidates.candidates import Candidates, all_candidates, leading
from graphml.sampling.candidates.moment import Moment
from graphml.sampling.chain import filter_order
from graphml.sampling.chain.filter_order import CHAIN, filters_on
from graphml.sampling.settings.params import BREAKERS, STRUCTURES
from tests.sampling.words import moment_of

FILES = [module.name for module in pkgutil.iter_modules(filters.__path__)]
FILTERS: list[Filter] = [importlib.import_module(f"{filters.__name__}.{name}").FILTER for name in FILES]
NAMED = [pytest.param(one, id=name) for name, one in zip(FILES, FILTERS, strict=True)]
LATE = {"grammar_lazy", "grammar_triggers", "grammar_after"}
OF_NO_FILTER = {"stop", "stop_tokens", "rng", *STRUCTURES, *LATE}
OF_NO_FILTER |= {"logprobs", "prompt_logprobs", "post_sampling_probs", "open_objects"}
OF_NO_FILTER |= {"reasoning_budget", "reasoning_budget_message", "reasoning_end"}
OF_NO_FILTER |= {"spec_type", "spec_draft_n_max", "spec_draft_n_min"}
OF_NO_FILTER |= {"diffusion_steps", "diffusion_block_length", "diffusion_eps", "diffusion_algorithm"}
OF_NO_FILTER |= {"diffusion_alg_temp", "diffusion_cfg_scale"}
SIZE, K = 300, 64


def lower_the_latest(ids: Any, logits: Any, history: Sequence[int]) -> Any:
    logits[ids == history[-1:]] -= 1.0
    return logits


VALUES: dict[str, Sequence[Any]] = {
    "temperature": (0.0, 1.0, 0.7, 1e-4),
    "dynatemp_range": (0.0, 0.4),
    "dynatemp_exponent": (1.0, 0.5),
    "top_k": (0, 1, 40, 65),
    "top_p": (1.0, 0.0, 0.3, 0.9),
    "min_p": (0.0, 0.05, 1.0),
    "typical_p": (1.0, 0.5),
    "min_keep": (0, 1, 9),
    "repeat_penalty": (1.0, 1.3),
    "presence_penalty": (0.0, 0.4),
    "frequency_penalty": (0.0, 0.4),
    "repeat_last_n": (64, 0, -1),
    "logit_bias": ({}, {3: 1.0}),
    "top_n_sigma": (-1.0, 1.0),
    "epsilon_cutoff": (0.0, 0.01),
    "eta_cutoff": (0.0, 0.01),
    "xtc_probability": (0.0, 0.5),
    "xtc_threshold": (0.1, 0.3),
    "dry_multiplier": (0.0, 0.8),
    "dry_base": (1.75, 1.0),
    "dry_allowed_length": (2, 1),
    "dry_penalty_last_n": (-1, 10),
    "dry_sequence_breakers": (BREAKERS, ()),
    "mirostat": (0, 0, 1, 2),
    "mirostat_tau": (5.0, 2.0),
    "mirostat_eta": (0.1, 0.3),
    "adaptive_target": (-1.0, 0.3),
    "adaptive_decay": (0.9, 0.5),
    "banned_strings": ((), ("ab", "cab")),
    "function": (None, lower_the_latest),
    "samplers": ("", "infill"),
}


def many_params(n: int, kind: type[SamplingParams] = SamplingParams) -> list[Any]:
    random = np.random.default_rng(7)
    return [
        kind(**{name: values[random.integers(len(values))] for name, values in VALUES.items()})
        for _ in range(n)
    ]


def rows() -> list[Any]:
    usual = np.random.default_rng(3).standard_normal(SIZE).astype(np.float32) * 4
    forbidden = np.where(np.arange(SIZE) % 2, usual, -np.inf).astype(np.float32)
    return [usual, usual * 5, np.round(usual), forbidden, np.zeros(SIZE, np.float32), usual[: K // 2]]


def top_k_of(row: Any) -> TopK:
    ids = leading(row, min(K, len(row))).astype(np.int32)
    log_sum = np.log(np.exp(row.astype(np.float64) - row.max()).sum()) + row.max()
    return TopK(ids, row[ids], float(np.float32(log_sum)), len(row))


def test_the_chain_has_every_file_once() -> None:
    assert sorted(one.name for one in CHAIN) == sorted(FILES)
    assert {id(one) for one in CHAIN} == {id(one) for one in FILTERS}


def test_filters_that_adjust_logits_come_first() -> None:
    adjusts = [one.adjusts for one in CHAIN]
    assert adjusts == sorted(adjusts, reverse=True)


def test_every_param_is_read_by_a_filter() -> None:
    read = {name for one in FILTERS for name in one.params_read}
    assert read == {field.name for field in dataclasses.fields(SamplingParams)} - OF_NO_FILTER
    assert read == set(VALUES)


def test_params_at_their_defaults_switch_no_filter_on() -> None:
    assert filters_on(SamplingParams(temperature=1.0), CHAIN) == ()
    assert [one.name for one in filters_on(SamplingParams(), CHAIN)] == ["temperature"]


read: set[str] = set()


class Recording(SamplingParams):
    """Params that know which of their fields are read."""

    def __getattribute__(self, name: str) -> Any:
        if name in VALUES:
            read.add(name)
        return super().__getattribute__(name)


@pytest.mark.parametrize("one", NAMED)
def test_a_filter_reads_the_params_that_it_states(one: Filter) -> None:
    every, (row, *_) = many_params(300, Recording), rows()
    read.clear()
    for params in every:
        if not one.is_on(params):
            continue
        moment, candidates = moment_of(one, params, [7, 8, 7, 8, 7]), all_candidates(row)
        left = one.apply(params, candidates, moment)
        if one.keeps is not None:
            place = int(np.flatnonzero(candidates.ids == left.ids[0])[0])
            one.keeps.after(params, moment.state, candidates, left, (place, 0))
        if one.on_device is not None:
            one.on_device(params)
        if isinstance(one.needs, NeedsTopK) and one.needs.enough(params, K) is not Enough.NEVER:
            one.needs.candidates(params, top_k_of(row))
    assert read == set(one.params_read)


class Unread(Sequence[int]):
    """A history that nobody may look at."""

    def __len__(self) -> NoReturn:
        raise AssertionError

    def __getitem__(self, _: Any) -> NoReturn:
        raise AssertionError


@pytest.mark.parametrize("one", NAMED)
def test_only_a_filter_that_needs_the_history_reads_it(one: Filter) -> None:
    on = [params for params in many_params(100) if one.is_on(params)]
    candidates = all_candidates(rows()[0])
    assert on
    for params in on:
        if one.needs is Needs.HISTORY:
            found = [
                one.apply(params, candidates, moment_of(one, params, history)).logits
                for history in ([2, 3, 2, 3, 2], [4])
            ]
            assert (found[0] != found[1]).any()
        else:
            one.apply(params, candidates, moment_of(one, params, Unread()))


@pytest.mark.parametrize("one", [one for one in NAMED if isinstance(one.values[0].needs, NeedsTopK)])
def test_of_the_top_k_a_filter_leaves_what_it_leaves_of_the_row(one: Filter) -> None:
    assert isinstance(one.needs, NeedsTopK)
    known, asked = 0, 0
    for params in many_params(200):
        enough = one.needs.enough(params, K)
        if not one.is_on(params) or enough is Enough.NEVER:
            continue
        for row in rows():
            found = one.needs.candidates(params, top_k_of(row))
            wanted = one.apply(params, all_candidates(row), moment_of(one, params))
            asked += 1
            if found is None:
                assert enough is Enough.OFTEN
                continue
            known += 1
            assert found.ids.tolist() == wanted.ids.tolist()
            assert found.logits.tobytes() == wanted.logits.tobytes()
            assert found.is_sorted == wanted.is_sorted
    assert known >= max(asked // 3, 20)


# --- a filter that says nothing of devices, or something that no device can follow


def without_the_best(params: SamplingParams, candidates: Candidates, _: Moment) -> Candidates:
    return candidates.take(np.flatnonzero(candidates.ids != 7), candidates.is_sorted)


UNKNOWN = Filter("made_up", (), lambda params: True, without_the_best, Needs.ROW)
ON_DEVICES = [
    SamplingParams(temperature=0.7),
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=1.0, min_p=0.1),
    SamplingParams(temperature=0.7, top_k=40),
    SamplingParams(temperature=1.0, top_p=0.9),
]


def told(params: SamplingParams) -> str:
    usual = vars(SamplingParams())
    return ",".join(f"{name}={value}" for name, value in vars(params).items() if value != usual[name])


@pytest.mark.parametrize("place", range(len(CHAIN) + 1))
@pytest.mark.parametrize("params", ON_DEVICES, ids=told)
def test_a_filter_unknown_to_devices_is_never_skipped(
    params: SamplingParams, place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert device_settings(params, 0.5, K) is not None
    monkeypatch.setattr(filter_order, "CHAIN", (*CHAIN[:place], UNKNOWN, *CHAIN[place:]))
    assert device_settings(params, 0.5, K) is None
    assert not device_samples_row(params)
    sampler, row = make_sampler(params), rows()[0]
    row[7] = row.max() + 1
    for seed in range(10):
        token = sampler.sample_top_k(top_k_of(row), PeekableRandom(seed))
        assert token in (None, sampler.sample(row, (), np.random.default_rng(seed)))
        assert token != 7


@pytest.mark.parametrize("needs", Needs)
def test_greedy_params_do_not_skip_a_filter_that_adjusts(
    needs: Needs, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = SamplingParams()
    assert device_settings(params, 0.5, K) is not None
    made_up = dataclasses.replace(UNKNOWN, needs=needs, adjusts=True)
    monkeypatch.setattr(filter_order, "CHAIN", (made_up, *CHAIN))
    assert device_settings(params, 0.5, K) is None
    assert not samples_without_row(params, K)


def test_a_filter_that_needs_the_history_is_given_it(monkeypatch: pytest.MonkeyPatch) -> None:
    params = SamplingParams(temperature=0.7, top_k=40)
    assert top_k_enough(params, K) is Enough.ALWAYS
    monkeypatch.setattr(filter_order, "CHAIN", (*CHAIN, dataclasses.replace(UNKNOWN, needs=Needs.HISTORY)))
    assert top_k_enough(params, K) is Enough.NEVER


@pytest.mark.parametrize("given", [None, {"top_k": 3.0}, {"wind": 1.0}], ids=["none", "taken", "unknown"])
def test_settings_that_no_device_can_follow_are_refused(
    given: Mapping[str, float] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = SamplingParams(temperature=0.7, top_k=40)
    for settings, usable in ((given, False), ({}, True)):
        made_up = dataclasses.replace(UNKNOWN, on_device=lambda _, settings=settings: settings)
        monkeypatch.setattr(filter_order, "CHAIN", (*CHAIN[:8], made_up))
        assert (device_settings(params, 0.5, K) is not None) == usable


def test_settings_come_from_the_filters_that_are_on() -> None:
    params = SamplingParams(temperature=0.5, top_k=40, top_p=0.9, min_p=1.0)
    settings = device_settings(params, 0.25, K)
    assert settings is not None
    assert dict(zip(SETTINGS, settings, strict=True)) == {
        "inverse_temperature": 2.0, "top_k": 40.0, "top_p": 0.9, "lowest": 0.0, "number": 0.25,
    }  # fmt: skip
