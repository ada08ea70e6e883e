"""The sampler chain against llama.cpp's own expectations and against a slow reference in plain loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from graphml.sampling import Candidates, SamplingParams, make_sampler
from graphml.sampling.candidates.candidates import leading
from tests.looped import looped
from tests.sampling.slow_sampling import reference


def logits_of(probabilities):
    return np.log(np.asarray(probabilities, dtype=np.float32))


def kept(probabilities, history=(), **fields):
    params = SamplingParams(**{"temperature": 1.0, **fields})
    ids, chances = make_sampler(params).distribution(logits_of(probabilities), history)
    return dict(zip(ids.tolist(), chances.tolist(), strict=True))


# --- facts: inputs and expectations of llama.cpp's tests/test-sampling.cpp

TENTHS = [0.1, 0.2, 0.3, 0.4]


@looped(
    ("fields", "expected"),
    [
        ({"temperature": 1.0}, {0: 0.1, 1: 0.2, 2: 0.3, 3: 0.4}),
        ({"temperature": 0.0}, {3: 1.0}),
        ({"top_k": 1}, {3: 1.0}),
        ({"top_k": 3}, {3: 0.44444, 2: 0.33333, 1: 0.22222}),
        ({"top_k": 4}, {3: 0.4, 2: 0.3, 1: 0.2, 0: 0.1}),
        ({"top_p": 0.0}, {3: 1.0}),
        ({"top_p": 0.7}, {3: 0.571429, 2: 0.428571}),
        ({"top_p": 0.8}, {3: 0.44444, 2: 0.33333, 1: 0.22222}),
        ({"min_p": 0.24}, {0: 0.1, 1: 0.2, 2: 0.3, 3: 0.4}),
        ({"min_p": 0.26}, {1: 0.2 / 0.9, 2: 0.3 / 0.9, 3: 0.4 / 0.9}),
        ({"min_p": 0.49}, {1: 0.2 / 0.9, 2: 0.3 / 0.9, 3: 0.4 / 0.9}),
        ({"min_p": 0.51}, {2: 0.3 / 0.7, 3: 0.4 / 0.7}),
        ({"min_p": 0.76}, {3: 1.0}),
        ({"min_p": 1.0}, {3: 1.0}),
    ],
)
def test_llama_cpp_expectations(fields, expected):
    assert kept(TENTHS, **fields) == pytest.approx(expected, abs=1e-5)


def test_typical_as_llama_cpp():
    assert set(kept([0.97, 0.01, 0.01, 0.01], typical_p=0.5)) == {0}
    assert set(kept([0.4, 0.2, 0.2, 0.2], typical_p=0.5)) == {1, 2, 3}


@looped(
    ("history", "fields", "expected"),
    [
        ([0], {"repeat_penalty": 50.0}, [0, 0.25, 0.25, 0.25, 0.25]),
        ([0, 1, 2, 0, 0], {"repeat_penalty": 50.0}, [0, 0, 0, 0.5, 0.5]),
        (
            [0],
            {"presence_penalty": 5.0, "frequency_penalty": 5.0},
            [0.000011, 0.249997, 0.249997, 0.249997, 0.249997],
        ),
        (
            [0, 1, 2, 0, 0],
            {"presence_penalty": 5.0, "frequency_penalty": 5.0},
            [0.0, 0.000023, 0.000023, 0.499977, 0.499977],
        ),
    ],
)
def test_penalties_as_llama_cpp(history, fields, expected):
    result = kept([0.2] * 5, history, **fields)
    assert [result[token] for token in range(5)] == pytest.approx(expected, abs=1e-6)


def maybe(value, strategy):
    return st.one_of(st.just(value), strategy)


settings_of_chains = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 0.3, 0.8, 1.0, 1.7]),
        "dynatemp_range": st.sampled_from([0.0, 0.0, 0.2, 1.0]),
        "dynatemp_exponent": st.sampled_from([0.5, 1.0, 2.0]),
        "top_k": maybe(0, st.integers(1, 12)),
        "top_p": maybe(1.0, st.floats(0.0, 0.99)),
        "min_p": maybe(0.0, st.floats(0.01, 1.0)),
        "typical_p": maybe(1.0, st.floats(0.05, 0.99)),
        "min_keep": maybe(0, st.integers(0, 12)),
        "repeat_penalty": maybe(1.0, st.floats(0.5, 2.0)),
        "presence_penalty": maybe(0.0, st.floats(-1.0, 1.0)),
        "frequency_penalty": maybe(0.0, st.floats(-1.0, 1.0)),
        "repeat_last_n": st.sampled_from([0, 1, 3, 64, -1]),
        "logit_bias": st.dictionaries(st.integers(0, 3), st.sampled_from([2.0, -1.5, -math.inf]), max_size=3),
    }
)


@settings(max_examples=400, deadline=None)
@given(
    logits=st.lists(
        st.one_of(st.floats(-8, 8, width=32), st.sampled_from([0.0, 1.0, 2.0])), min_size=4, max_size=40
    ),
    history=st.lists(st.integers(0, 45), max_size=20),
    fields=settings_of_chains,
)
def test_chain_equals_slow_reference(logits, history, fields):
    params = SamplingParams(**fields)
    if all(params.logit_bias.get(i) == -math.inf for i in range(len(logits))):
        return
    expected = reference(logits, history, params)
    assume(expected is not None)
    ids, probabilities = make_sampler(params).distribution(np.array(logits, np.float32), history)
    found = dict(zip(ids.tolist(), probabilities.tolist(), strict=True))
    assert len(found) == len(ids)
    assert found.keys() == expected.keys()
    assert found == pytest.approx(expected, abs=1e-4)
    assert probabilities.sum() == pytest.approx(1.0)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.sampled_from([0.0, -0.0, 1.5, -2.0, 3.25, -math.inf]), min_size=1, max_size=60),
    st.integers(1, 70),
)
def test_leading_is_a_stable_descending_sort(values, count):
    scores = np.array(values, np.float32)
    expected = sorted(range(len(values)), key=lambda i: -scores[i])[:count]
    assert leading(scores, count).tolist() == expected


# --- steps in order, one at a time


def test_steps_come_in_llama_cpps_order():
    params = SamplingParams(
        temperature=0.7,
        top_k=9,
        top_p=0.9,
        min_p=0.1,
        typical_p=0.9,
        repeat_penalty=1.1,
        logit_bias={1: 1.0},
    )
    sampler = make_sampler(params)
    logits = np.linspace(-1, 1, 20, dtype=np.float32)
    names = ["logit_bias", "penalties", "top_k", "typical", "top_p", "min_p", "temperature"]
    assert [name for name, _ in sampler.trace(logits, [3])] == ["logits", *names]
    sizes = [len(candidates) for _, candidates in sampler.trace(logits, [3])]
    assert sizes == sorted(sizes, reverse=True)
    dynamic = make_sampler(SamplingParams(temperature=0.7, dynatemp_range=0.1))
    assert [one.name for one, _ in dynamic.steps] == ["dynamic_temperature"]
    assert make_sampler(SamplingParams(temperature=1.0)).steps == ()


def test_inputs_are_never_written_to():
    logits = np.linspace(-2, 2, 50, dtype=np.float32)
    before = logits.copy()
    params = SamplingParams(
        temperature=0.5, logit_bias={3: -math.inf}, repeat_penalty=2.0, top_k=5, top_p=0.5
    )
    make_sampler(params).sample(logits, [1, 2, 3], np.random.default_rng(0))
    np.testing.assert_array_equal(logits, before)


def test_top_p_looks_beyond_its_first_look():
    logits = np.zeros(5000, np.float32)
    ids, _ = make_sampler(SamplingParams(temperature=1.0, top_p=0.5)).distribution(logits, [])
    assert abs(len(ids) - 2500) <= 2
    assert ids.tolist() == list(range(len(ids)))


def test_equal_logits_go_by_id():
    logits = np.array([1, 3, 3, 3, 0], np.float32)
    assert kept_ids(logits, top_k=2) == [1, 2]
    assert make_sampler(SamplingParams()).sample(logits, [], np.random.default_rng(0)) == 1


def kept_ids(logits, **fields):
    params = SamplingParams(**{"temperature": 1.0, **fields})
    return make_sampler(params).distribution(logits, [])[0].tolist()


def test_penalty_window_is_the_last_n():
    logits = np.full(4, 2.0, np.float32)
    history = [0, 0, 1, 2]
    for last_n, lowered in ((0, set()), (1, {2}), (2, {1, 2}), (4, {0, 1, 2}), (-1, {0, 1, 2})):
        params = SamplingParams(temperature=1.0, repeat_penalty=2.0, repeat_last_n=last_n)
        *_, (_, last) = make_sampler(params).trace(logits, history)
        assert set(np.flatnonzero(last.logits < 2.0).tolist()) == lowered


def test_penalties_pass_over_foreign_ids():
    logits = np.full(4, 2.0, np.float32)
    params = SamplingParams(temperature=1.0, repeat_penalty=2.0)
    *_, (_, last) = make_sampler(params).trace(logits, [-1, 4, 10**6, 1])
    assert last.logits.tolist() == [2.0, 1.0, 2.0, 2.0]


# --- greedy


def test_default_is_greedy_and_needs_no_random_number():
    generator = np.random.default_rng(1)
    state = generator.bit_generator.state
    assert make_sampler(SamplingParams()).sample(np.array([0.1, 0.9, 0.3], np.float32), [], generator) == 1
    assert generator.bit_generator.state == state


def test_greedy_heeds_bias_and_penalties_but_no_filter():
    logits = np.array([1.0, 2.0, 1.9], np.float32)
    generator = np.random.default_rng(1)

    def choose(history=(), **fields):
        return make_sampler(SamplingParams(**fields)).sample(logits, history, generator)

    assert choose(typical_p=0.01, top_k=3, min_p=0.5, dynatemp_range=1.0) == 1
    assert choose(logit_bias={1: -math.inf}) == 2
    assert choose(history=[1], repeat_penalty=1.5) == 2
    assert choose(logit_bias={0: 5.0}) == 0


def test_tiny_temperatures_end_in_the_greedy_choice():
    for temperature in (1e-30, 1e-45, 1e-60):
        for shift in (0.0, -50.0, 50.0):
            logits = np.array([1.0, 2.0, 1.5], np.float32) + np.float32(shift)
            params = SamplingParams(temperature=temperature)
            assert make_sampler(params).sample(logits, [], np.random.default_rng(0)) == 1


# --- the sample


def test_samples_follow_the_distribution_and_the_seed():
    logits = logits_of([0.5, 0.3, 0.2])
    sampler = make_sampler(SamplingParams(temperature=1.0))

    def run(seed, n):
        generator = np.random.default_rng(seed)
        return [sampler.sample(logits, [], generator) for _ in range(n)]

    counts = np.bincount(run(3, 20_000), minlength=3) / 20_000
    assert counts == pytest.approx([0.5, 0.3, 0.2], abs=0.015)
    assert run(5, 50) == run(5, 50)
    assert run(5, 50) != run(6, 50)


class Stuck(np.random.Generator):
    """A generator that always gives one number."""

    def __init__(self, number):
        super().__init__(np.random.PCG64(0))
        self.number = number

    def random(self, *args, **kwargs):
        return self.number


@pytest.mark.parametrize("number", [0.0, 1.0 - 2**-53])
def test_a_forbidden_token_is_never_sampled(number):
    logits = np.array([-np.inf, 0.0, 1.0, -np.inf], np.float32)
    chosen = make_sampler(SamplingParams(temperature=1.0)).sample(logits, [], Stuck(number))
    assert chosen == (1 if number == 0.0 else 2)


def test_candidates_take_and_head():
    candidates = Candidates(np.arange(3, dtype=np.int32), np.array([3, 2, 1], np.float32), is_sorted=True)
    assert candidates.head(2).ids.tolist() == [0, 1]
    assert candidates.take(np.array([2, 0]), is_sorted=False).logits.tolist() == [1.0, 3.0]


def test_reaching_the_mass_is_enough_for_top_p_but_not_for_typical():
    assert len(kept([0.25] * 4, top_p=0.5)) == 2
    assert len(kept([0.25] * 4, typical_p=0.5)) == 3
