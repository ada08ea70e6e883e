"""The numba backend's kernels of rows: bits of a row, in-place results, NaN, strict sums, broadcasting."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from graphml.ir.op import Array
from graphml.ir.ops import index

numba = pytest.importorskip("numba")
from graphml_numba.helpers import F32, helper, sums_helper  # noqa: E402
from graphml_numba.kernels import elementwise, norms, reductions  # noqa: E402
from graphml_numba.kernels.broadcast import sub  # noqa: E402
from graphml_numba.kernels.exponential import exp, tanh  # noqa: E402
from graphml_numba.kernels.index import top_k, top_k_groups  # noqa: E402
from graphml_numba.kernels.layout import permute  # noqa: E402

EPS = np.float32(1e-5)
ROW_KERNELS = {
    "silu": (elementwise.silu, ()),
    "gelu_erf": (elementwise.gelu_erf, ()),
    "rms_norm": (norms.rms_norm, (EPS,)),
    "layer_norm": (norms.layer_norm, (EPS,)),
    "softmax": (reductions.softmax, ()),
}


def compiled(kernel: Any) -> Any:
    return numba.njit(error_model="numpy")(kernel)


def random(*shape: int) -> Array:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("name", ROW_KERNELS)
def test_a_row_has_the_same_bits_alone_and_in_place_and_beside_a_row_of_nan(name: str) -> None:
    kernel, more = ROW_KERNELS[name]
    run, x = compiled(kernel), random(5, 1283)
    x[2] = np.nan
    every = np.empty_like(x)
    run(every, x, 0, 5, *more)
    assert np.isnan(every[2]).all()
    assert np.isfinite(every[[0, 1, 3, 4]]).all()
    for row in range(5):
        alone = np.empty_like(x[:1])
        run(alone, x[row : row + 1], 0, 1, *more)
        np.testing.assert_array_equal(alone[0], every[row])
    in_place = x.copy()
    run(in_place, in_place, 0, 2, *more)
    run(in_place, in_place, 2, 5, *more)
    np.testing.assert_array_equal(in_place, every)


def test_exp_and_tanh_are_exact_to_two_units_in_the_last_place() -> None:
    x = np.concatenate([np.linspace(-87, 88.7, 100_000), np.geomspace(1e-30, 1, 1000)]).astype(np.float32)
    for function, right in ((exp, np.exp), (tanh, np.tanh)):
        got = np.array([function(one) for one in x], np.float32)
        np.testing.assert_array_max_ulp(got, right(x.astype(np.float64)).astype(np.float32), 2)
    special = np.array([np.nan, np.inf, -np.inf, 0, 100, -200], np.float32)
    np.testing.assert_array_equal([exp(one) for one in special], [np.nan, np.inf, 0, 1, np.inf, 0])
    np.testing.assert_array_equal([tanh(one) for one in special], [np.nan, 1, -1, 0, 1, -1])


def test_a_helper_keeps_the_order_of_its_sums_where_a_helper_of_sums_calls_it_first() -> None:
    @helper
    def nearest(x: Any) -> Any:
        return (x + F32(1.5 * 2**23)) - F32(1.5 * 2**23)

    @sums_helper
    def rounded(x: Array) -> Any:
        total = F32(0)
        for i in range(x.shape[0]):
            total += nearest(x[i])
        return total

    assert rounded(np.array([0.4, 1.4, 2.4], np.float32)) == 3


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (1, 3, 1, 5), (2, 1, 4, 1), (1, 1, 1, 1), (2, 3, 1, 1)])
def test_an_operand_is_broadcast_along_any_dimensions(shape: tuple[int, ...]) -> None:
    a, b = random(2, 3, 4, 5), random(*shape) + 1
    out = np.empty_like(a)
    compiled(sub)(out, a, b, 0, 11)
    compiled(sub)(out, a, b, 11, 24)
    np.testing.assert_array_equal(out, a - b)


def test_permute_swaps_any_dimensions() -> None:
    x = random(2, 3, 4, 5)
    for axes in ((3, 1, 0, 2), (0, 1, 2, 3), (2, 3, 1, 0)):
        wanted = np.ascontiguousarray(x.transpose(axes))
        out = np.empty_like(wanted)
        compiled(permute)(out, x, 0, wanted.size // wanted.shape[-1], axes)
        np.testing.assert_array_equal(out, wanted)


def test_nan_is_after_all_numbers_and_the_first_of_equals_first() -> None:
    x = np.array([[np.nan, 1, -np.inf, 3, 3, np.nan, -0.0, 0.0]], np.float32)
    out = np.empty((1, 8), np.int32)
    compiled(top_k)(out, x, 0, 1)
    assert out.tolist() == [[3, 4, 1, 6, 7, 2, 0, 5]]
    kept = np.empty_like(x)
    compiled(top_k_groups)(kept, x, 0, 1, 4, 2)
    reference = index.top_k_groups.reference
    assert reference is not None
    wanted = reference([x], {"n_group": 4, "n_group_used": 2})
    np.testing.assert_array_equal(kept, wanted)


def quotients(out: Any, a: int, b: int) -> None:
    out[0] = a // b
    out[1] = a % b
    out[2] = a // 8
    out[3] = a % 8
    out[4] = a // -7
    out[5] = a % -7
    out[6] = -7 // b
    out[7] = -7 % b


def test_quotients_are_rounded_down_as_in_the_other_languages() -> None:
    run = compiled(quotients)
    for a, b in ((17, 5), (-17, 5), (17, -5), (-17, -5), (-16, 8), (16, -8), (0, 3)):
        for kind in (np.int32, np.int64):
            made, wanted = np.empty(8, kind), np.empty(8, kind)
            run(made, kind(a), kind(b))
            quotients(wanted, a, b)
            np.testing.assert_array_equal(made, wanted)
