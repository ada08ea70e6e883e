"""Activations of 8 bits have the range of float32: what fits no scale in half precision is as exact."""

from __future__ import annotations

import numpy as np
import pytest

from graphml.ir.activation_blocks import decode_activations, encode_activations


@pytest.mark.parametrize("size", [1e-36, 1e-20, 1e-8, 1e-3, 1.0, 8.4e6, 1e12, 1e38])
def test_a_block_of_any_size_keeps_its_numbers(size: float) -> None:
    x = np.random.default_rng(0).uniform(-1, 1, (3, 64)) * size
    got = decode_activations(encode_activations(x.astype(np.float32)))
    np.testing.assert_allclose(got, x, rtol=0, atol=size / 244)


def test_what_no_scale_has_an_inverse_for_is_zero() -> None:
    assert not decode_activations(encode_activations(np.full((1, 32), 4e-37, np.float32))).any()
    assert decode_activations(encode_activations(np.full((1, 32), 5e-37, np.float32))).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_block_with_what_is_no_number_is_none(bad: float) -> None:
    x = np.ones((1, 64), np.float32)
    x[0, 3] = bad
    got = decode_activations(encode_activations(x))
    assert np.isnan(got[0, :32]).all()
    np.testing.assert_allclose(got[0, 32:], 1, rtol=3e-4)


def test_halves_go_away_from_zero() -> None:
    x = np.zeros((1, 32), np.float32)
    x[0, :4] = 127, 2.5, -2.5, 0.49
    np.testing.assert_array_equal(decode_activations(encode_activations(x))[0, :4], [127, 3, -3, 0])
