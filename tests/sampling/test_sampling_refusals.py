"""Settings and logits that cannot be: each is named."""

from __future__ import annotations

import dataclasses
import math
import pickle
from typing import Any

import numpy as np
import pytest

from graphml.errors import UsageError
from graphml.sampling import SamplingParams, make_sampler
from tests.looped import looped


@looped(
    ("field", "value", "wanted"),
    [
        ("temperature", math.nan, "finite number of at least 0"),
        ("temperature", -0.1, "-0.1"),
        ("temperature", "0.8", "'0.8'"),
        ("temperature", True, "True"),
        ("temperature", None, "None"),
        ("dynatemp_range", -1, "at least 0"),
        ("dynatemp_exponent", math.inf, "inf"),
        ("top_k", 1.5, "whole number"),
        ("top_k", -1, "at least 0"),
        ("top_k", True, "True"),
        ("top_p", 1.5, "from 0 to 1"),
        ("top_p", math.nan, "nan"),
        ("min_p", -0.5, "from 0 to 1"),
        ("typical_p", 2, "from 0 to 1"),
        ("min_keep", -2, "at least 0"),
        ("repeat_penalty", 0, "above 0"),
        ("repeat_penalty", -1.0, "above 0"),
        ("repeat_penalty", 1e-300, "at least 1.2e-38"),
        ("repeat_penalty", 1e300, "at most 3.4e+38"),
        ("temperature", 1e39, "at most 3.4e+38"),
        ("presence_penalty", math.inf, "finite"),
        ("presence_penalty", -1e300, "float32's range"),
        ("logit_bias", {1: 1e308}, "float32's range"),
        ("frequency_penalty", [], "finite"),
        ("repeat_last_n", -2, "at least -1"),
        ("top_n_sigma", math.nan, "finite number"),
        ("epsilon_cutoff", 1.5, "from 0 to 1"),
        ("eta_cutoff", -0.1, "from 0 to 1"),
        ("xtc_probability", 2, "from 0 to 1"),
        ("xtc_threshold", "0.1", "'0.1'"),
        ("dry_multiplier", math.inf, "finite number"),
        ("dry_base", -1.0, "at least 0"),
        ("dry_allowed_length", -1, "at least 0"),
        ("dry_penalty_last_n", -2, "at least -1"),
        ("dry_sequence_breakers", "x", "tuple"),
        ("dry_sequence_breakers", ("a", ""), "not empty"),
        ("mirostat", 3, "0 to 2"),
        ("mirostat_tau", -1, "at least 0"),
        ("mirostat_eta", None, "None"),
        ("adaptive_target", 1.5, "from -1 to 1"),
        ("adaptive_decay", 1.0, "from 0 to 0.99"),
        ("banned_strings", ("",), "not empty"),
        ("function", 4, "a function of (ids, logits, history), or FILE.py:NAME"),
        ("function", "nowhere.py:f", "nowhere.py: no such file of a function"),
        ("samplers", "nothing", "got 'nothing'"),
        ("rng", "c", "one of graphml, llama.cpp"),
        ("logit_bias", [(1, 2.0)], "mapping"),
        ("logit_bias", {-1: 2.0}, "token id"),
        ("logit_bias", {"a": 2.0}, "token id"),
        ("logit_bias", {1: math.nan}, "nan"),
        ("logit_bias", {1: math.inf}, "inf"),
        ("logit_bias", {1: -1e300}, "wanted a finite number in float32's range (up to 3.4e+38), got"),
        ("stop", 5, "wanted texts"),
        ("stop", "", "not empty"),
        ("stop", ("",), "not empty"),
        ("stop", (1,), "strings"),
        ("stop_tokens", (True,), "whole number"),
        ("stop_tokens", 2, "collection"),
    ],
)
def test_bad_settings_are_named(field, value, wanted):
    with pytest.raises(UsageError, match=rf"^{field}") as caught:
        SamplingParams(**{field: value})
    assert wanted in str(caught.value)


def test_settings_are_values():
    params = SamplingParams(
        top_k=np.int64(4),
        temperature=np.float32(0.5),
        stop=["a"],
        banned_strings="b",
        stop_tokens=[np.int32(2)],
        logit_bias={1: 2},
    )
    assert params.stop == ("a",)
    assert params.banned_strings == ("b",)
    assert params.stop_tokens == frozenset({2})
    assert params == pickle.loads(pickle.dumps(params))
    assert hash(params) == hash(dataclasses.replace(params))
    assert dataclasses.asdict(params)["logit_bias"] == {1: 2.0}
    with pytest.raises(dataclasses.FrozenInstanceError):
        params.top_k = 3


@looped("temperature", [0.0, 1.0, 0.7])
@looped(
    ("logits", "bias", "wanted"),
    [
        ([0.0, math.nan, 1.0], {}, "NaN for token 1"),
        ([0.0, math.inf, 1.0], {}, r"\+inf for token 1"),
        ([-math.inf, -math.inf], {}, "every token is forbidden"),
        ([1.0, 2.0], {0: -math.inf, 1: -math.inf}, "every token is forbidden"),
        ([1.0, 2.0], {2: 1.0}, "below the vocabulary's size 2, got 2"),
    ],
)
def test_unusable_logits_are_refused(temperature, logits, bias, wanted):
    sampler = make_sampler(SamplingParams(temperature=temperature, logit_bias=bias))
    with pytest.raises(UsageError, match=wanted):
        sampler.sample(np.array(logits, np.float32), [], np.random.default_rng(0))


@looped("temperature", [0.0, 0.9])
@looped(
    ("given", "wanted"),
    [
        ({"repeat_penalty": 3e38}, 2),
        ({"repeat_penalty": 1.2e-38}, 0),
        ({"presence_penalty": 3e38, "frequency_penalty": 3e38}, 2),
        ({"presence_penalty": 3e38, "frequency_penalty": -3e38}, 0),
        ({"presence_penalty": -3e38, "frequency_penalty": -3e38}, 0),
        ({"logit_bias": {1: 3e38, 2: -3e38}}, 1),
        ({"logit_bias": {1: 3e38, 2: -3e38}, "dynatemp_range": 0.5}, 1),
    ],
)
def test_the_ends_of_the_range_neither_warn_nor_forbid(
    temperature: float, given: dict[str, Any], wanted: int
) -> None:
    """Id 0 is in the history twice, the model forbids 3: what comes is what exact numbers would say."""
    logits = np.array([2.0, 0.5, 1.9, -math.inf], np.float32)
    sampler = make_sampler(SamplingParams(temperature=temperature, **given))
    sampled = {sampler.sample(logits, [0, 0, 1], np.random.default_rng(seed)) for seed in range(5)}
    assert wanted in sampled
    assert 3 not in sampled
    assert sampled == {wanted} or temperature > 0
    assert not np.isnan(sampler.distribution(logits, [0, 0, 1])[1]).any()


@pytest.mark.parametrize(
    "logits", [np.zeros((2, 3), np.float32), np.zeros(0, np.float32), np.zeros(3, np.int32)]
)
def test_wrong_shapes_are_refused(logits):
    with pytest.raises(UsageError, match=r"wanted float32 \[n_vocab\]"):
        make_sampler(SamplingParams()).sample(logits, [], np.random.default_rng(0))
