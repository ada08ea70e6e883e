"""The references of the ops against formulas written down a second time, in plain Python and float64."""

from __future__ import annotations

import math
from collections.abc import Callable

import graphml_quant
import numpy as np
import pytest

from graphml.errors import GraphError, ShapeError
from graphml.ir.dtype import F32, I32, dtype
from graphml.ir.language import Builder
from graphml.ir.ops.elementwise import _erf
from graphml.ir.ops.index import set_rows
from tests.ir.meanings import normal, run
from tests.looped import looped


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


FORMULAS: dict[str, Callable[[float], float]] = {
    "neg": lambda x: -x,
    "abs": abs,
    "sqr": lambda x: x * x,
    "exp": math.exp,
    "tanh": math.tanh,
    "sigmoid": sigmoid,
    "relu": lambda x: max(x, 0.0),
    "silu": lambda x: x * sigmoid(x),
    "gelu": lambda x: x / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "gelu_erf": lambda x: x / 2 * math.erfc(-x / math.sqrt(2)),
    "gelu_quick": lambda x: x * sigmoid(1.702 * x),
    "softplus": lambda x: max(x, 0) + math.log1p(math.exp(-abs(x))),
}


@looped("name", FORMULAS)
def test_elementwise(name: str) -> None:
    x = np.concatenate([np.linspace(-30, 30, 4001), np.linspace(-1e-3, 1e-3, 101)]).astype(np.float32)
    wanted = np.array([FORMULAS[name](float(value)) for value in x])
    np.testing.assert_allclose(run(name, x[None])[0], wanted, rtol=3e-6, atol=1e-7)


def test_log() -> None:
    x = np.abs(normal(3, 40)) * 10.0 ** normal(3, 40, seed=1)
    np.testing.assert_allclose(run("log", x), [[math.log(v) for v in row] for row in x], rtol=2e-6, atol=1e-7)
    np.testing.assert_array_equal(run("log", np.array([[0.0, np.inf]], np.float32)), [[-np.inf, np.inf]])
    assert np.isnan(run("log", np.array([[-1.0, np.nan]], np.float32))).all()


def test_whole_numbers() -> None:
    x = [-2.5, -1.5, -0.5, -0.3, 0.3, 0.5, 1.5, 2.5, 1e20]
    given = np.array(x, np.float32)
    np.testing.assert_array_equal(run("floor", given), [math.floor(v) for v in given])
    np.testing.assert_array_equal(run("round", given), [round(float(v)) for v in given])


NUMBERS = [-np.inf, -2.0, 0.0, 1.5, np.inf, np.nan]


@looped("name", ["maximum", "minimum", "less", "less_equal", "equal"])
def test_pairs_with_nan_and_infinity(name: str) -> None:
    def meant(a: float, b: float) -> float:
        if name in ("maximum", "minimum"):
            return math.nan if math.isnan(a) or math.isnan(b) else (max if name == "maximum" else min)(a, b)
        return float({"less": a < b, "less_equal": a <= b, "equal": a == b}[name])

    a, b = (np.array(one, np.float32) for one in (NUMBERS * 6, np.repeat(NUMBERS, 6)))
    wanted = [meant(float(x), float(y)) for x, y in zip(a, b, strict=True)]
    np.testing.assert_array_equal(run(name, a[None], b[None])[0], wanted)


def test_where_reads_nothing_of_the_value_that_is_not_chosen() -> None:
    mask = np.array([[0.0, 1.0, -0.0, np.nan], [2.0, 0.0, 0.0, 1e-40]], np.float32)
    a, b = np.array([[np.nan, 1, np.inf, 2], [3, np.nan, np.nan, 4]], np.float32), np.array([[5.0], [6.0]])
    got = run("where", mask, a, b.astype(np.float32))
    np.testing.assert_array_equal(got, [[5, 1, 5, 2], [3, 6, 6, 4]])


def test_cast_rounds_and_saturates() -> None:
    x = np.array([2.9, -2.9, 3e9, -3e9, np.inf, -np.inf, np.nan, 2147483520.0], np.float32)
    whole = [2, -2, 2**31 - 1, -(2**31), 2**31 - 1, -(2**31), 0, 2147483520]
    np.testing.assert_array_equal(run("cast", x, dtype="i32"), whole)
    exact = np.array([2**24 + 1, 2**24 + 3, -(2**31), 2**31 - 1], np.int32)
    nearest = [2.0**24, 2.0**24 + 4, -(2.0**31), 2.0**31]
    np.testing.assert_array_equal(run("cast", exact, dtype="f32"), nearest)


def test_extremes_and_running_sums() -> None:
    x = np.array([[1, 5, -3], [np.nan, 2, 1], [-np.inf, -np.inf, np.inf], [-np.inf] * 3], np.float32)
    np.testing.assert_array_equal(run("max_rows", x), [[5], [np.nan], [np.inf], [-np.inf]])
    np.testing.assert_array_equal(run("min_rows", x), [[-3], [np.nan], [-np.inf], [-np.inf]])
    many = np.full((1, 3000), 0.1, np.float32)
    wanted = [math.fsum(many[0, : i + 1].astype(float)) for i in range(3000)]
    np.testing.assert_allclose(run("cumsum", many)[0], wanted, rtol=1e-7)


def test_sqrt_and_division() -> None:
    x = np.abs(normal(3, 40)) + 1e-3
    np.testing.assert_allclose(run("sqrt", x), [[math.sqrt(v) for v in row] for row in x], rtol=1e-6)
    np.testing.assert_allclose(run("div", x, x[:1]), x.astype(np.float64) / x[0], rtol=1e-6)


def test_far_out_nothing_overflows() -> None:
    x = np.array([[-1e4, -100.0, 100.0, 1e4]], np.float32)
    np.testing.assert_allclose(run("silu", x), [[0, -100 * sigmoid(-100), 100, 1e4]], rtol=1e-3)
    np.testing.assert_array_equal(run("sigmoid", x)[0, [0, 3]], [0, 1])
    np.testing.assert_array_equal(run("gelu_erf", x)[0], [0, 0, 100, 1e4])
    np.testing.assert_array_equal(run("softplus", x)[0, 2:], [100, 1e4])


def test_erf_has_the_digits_of_float64() -> None:
    x = np.linspace(-7, 7, 5001)
    np.testing.assert_allclose(_erf(x), [math.erf(value) for value in x], rtol=0, atol=2e-13)


def test_scale_and_clamp() -> None:
    x = normal(4, 9)
    np.testing.assert_allclose(run("scale", x, factor=2.5, offset=-1.0), x * 2.5 - 1, rtol=1e-6, atol=1e-7)
    np.testing.assert_array_equal(run("clamp", x, low=-0.5), np.maximum(x, -0.5))
    np.testing.assert_array_equal(run("clamp", x, low=-0.5, high=0.25), np.clip(x, -0.5, 0.25))


def test_norms() -> None:
    x = normal(3, 65) * 10
    for row, rms, layer, l2 in zip(
        x,
        run("rms_norm", x, eps=1e-3),
        run("layer_norm", x, eps=1e-3),
        run("l2_norm", x, eps=1e-3),
        strict=True,
    ):
        values = [float(v) for v in row]
        square = math.fsum(v * v for v in values)
        mean = math.fsum(values) / len(values)
        variance = math.fsum((v - mean) ** 2 for v in values) / len(values)
        np.testing.assert_allclose(
            rms, [v / math.sqrt(square / len(values) + 1e-3) for v in values], rtol=1e-6
        )
        np.testing.assert_allclose(
            layer, [(v - mean) / math.sqrt(variance + 1e-3) for v in values], rtol=2e-6
        )
        np.testing.assert_allclose(l2, [v / math.sqrt(square) for v in values], rtol=1e-6)
    tiny = np.full((1, 4), 1e-6, np.float32)
    np.testing.assert_allclose(run("l2_norm", tiny, eps=1e-3), [[1e-3] * 4], rtol=1e-6)


def test_walsh_hadamard() -> None:
    """Sums and differences of pairs, of pairs of those, and so on; twice is nothing; lengths stay."""
    np.testing.assert_allclose(
        run("walsh_hadamard", np.array([[1.0, 2.0, 3.0, 5.0]], np.float32), block=4), [[5.5, -1.5, -2.5, 0.5]]
    )
    x = normal(3, 2, 192)
    once = run("walsh_hadamard", x, block=64)
    np.testing.assert_allclose(run("walsh_hadamard", once, block=64), x, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(once, axis=-1), np.linalg.norm(x, axis=-1), rtol=1e-6)
    np.testing.assert_array_equal(once[..., 64:128], run("walsh_hadamard", x[..., 64:128], block=64))
    for block, width in ((3, 6), (1, 4), (8192, 8192), (64, 96)):
        with pytest.raises((GraphError, ShapeError), match="blocks"):
            (g := Builder(4)).walsh_hadamard(g.constant([0.5] * width), block)


def test_softmax_and_sums() -> None:
    x = normal(3, 50) * 30
    x[0] += 1e4
    for row, soft, total in zip(x, run("softmax", x), run("sum_rows", x), strict=True):
        top = max(float(v) for v in row)
        weights = [math.exp(float(v) - top) for v in row]
        np.testing.assert_allclose(soft, np.array(weights) / math.fsum(weights), rtol=1e-6, atol=1e-12)
        assert total[0] == pytest.approx(math.fsum(map(float, row)), rel=1e-6)


def test_top_k_takes_the_first_of_equals() -> None:
    x = np.array([[1, 3, 3, 2, 3], [0, 0, 0, 0, 0], [-1, -2, -3, -4, -5]], np.float32)
    np.testing.assert_array_equal(run("top_k", x, k=3), [[1, 2, 4], [0, 1, 2], [0, 1, 2]])
    np.testing.assert_array_equal(run("gather", x, run("top_k", x, k=2)), [[3, 3], [0, 0], [-1, -2]])
    many = np.random.default_rng(0).integers(0, 5, (3, 500)).astype(np.float32)
    for row, got in zip(many, run("top_k", many, k=400), strict=True):
        assert list(got) == sorted(range(500), key=lambda i: (-row[i], i))[:400]


def test_set_rows_rounds_bf16_to_the_nearest_and_ties_to_even() -> None:
    step = 2.0**-7  # of bf16 at 1
    x = np.array(
        [1, 1 + step / 2, 1 + step * 1.5, 1 + step * 0.51, -1 - step * 0.49, np.inf, 2.0**-133], np.float32
    )
    wanted = np.array([1, 1, 1 + 2 * step, 1 + step, -1, np.inf, 2.0**-133], np.float32)
    state = np.zeros((4, 1, 2 * len(x)), np.uint8)
    run("set_rows", state, x[None, None], np.array([2], np.int32), to_dtype="bf16")
    got = graphml_quant.dequantize(graphml_quant.by_name("bf16"), state, (4, 1, len(x)))
    np.testing.assert_array_equal(got[2, 0], wanted)
    assert not got[[0, 1, 3]].any()


def test_set_rows_keeps_nan_in_bf16() -> None:
    x = np.array([0x7FFFFFFF, 0xFF800001], np.uint32).view(np.float32)
    state = np.zeros((1, 4), np.uint8)
    run("set_rows", state, x[None], np.array([0], np.int32), to_dtype="bf16")
    assert np.isnan(graphml_quant.dequantize(graphml_quant.by_name("bf16"), state, (1, 2))).all()


def test_set_rows_quantises_blocks_and_refuses_what_is_no_number() -> None:
    state, x = np.zeros((3, 2, 18), np.uint8), normal(1, 2, 32)
    run("set_rows", state, x, np.array([1], np.int32), to_dtype="q4_0")
    np.testing.assert_array_equal(state[1], graphml_quant.quantize(graphml_quant.by_name("q4_0"), x)[0])
    assert not state[[0, 2]].any()
    x[0, 1, 3] = np.nan
    with pytest.raises(GraphError, match=r"\[set_rows\] q4_0: the value at \(0, 1, 3\) is nan"):
        run("set_rows", state, x, np.array([1], np.int32), to_dtype="q4_0")


def test_set_rows_refuses_another_format_than_the_states() -> None:
    g = Builder()
    state, x = g.state("s", dtype("q8_0"), (4, 32)), g.input("x", F32, (2, 32))
    with pytest.raises(ShapeError, match=r"to_dtype is f32; the state is q8_0\[4, 32\]"):
        g.call(set_rows, state, x, g.input("cells", I32, (2,)))


def test_set_rows_and_get_rows() -> None:
    state, x = np.zeros((5, 3), np.float16), normal(2, 3)
    run("set_rows", state, x, np.array([4, 1], np.int32))
    got = run("get_rows", state, np.array([[1], [4]], np.int32), from_dtype="f16")
    np.testing.assert_array_equal(got[:, 0], x[::-1].astype(np.float16))


def test_rows_of_a_quantised_table_are_rows_of_the_decoded_one() -> None:
    blocks = run("quantize", normal(7, 64), dtype="q8_0")
    rows = np.array([6, 0, 6], np.int32)
    decoded = run("dequantize", blocks, from_dtype="q8_0")
    assert decoded.shape == (7, 64)
    np.testing.assert_array_equal(run("get_rows", blocks, rows, from_dtype="q8_0"), decoded[rows])
    np.testing.assert_allclose(decoded, normal(7, 64), atol=0.02)


def test_products() -> None:
    weight, x = normal(7, 5), normal(2, 3, 5, seed=1)
    got = run("mul_mat", weight, x)
    for place in np.ndindex(2, 3, 7):
        row, column = x[place[:2]], weight[place[2]]
        wanted = math.fsum(float(a) * float(b) for a, b in zip(row, column, strict=True))
        assert got[place] == pytest.approx(wanted, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("lead", [(3,), (2, 3)])
def test_products_of_each_batch(lead: tuple[int, ...]) -> None:
    weight, x = normal(*lead, 7, 5), normal(*lead, 4, 5, seed=1)
    got = run("mul_mat_batch", weight, x)
    assert (got.shape, got.dtype) == ((*lead, 4, 7), np.float32)
    for place in np.ndindex(got.shape):
        row, column = x[place[:-1]], weight[(*place[:-2], place[-1])]
        wanted = math.fsum(float(a) * float(b) for a, b in zip(row, column, strict=True))
        assert got[place] == pytest.approx(wanted, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("own", [False, True], ids=["shared x", "x per expert"])
def test_products_with_chosen_experts(own: bool) -> None:
    weight, x = normal(4, 6, 5), normal(3, 2, 5, seed=1) if own else normal(3, 5, seed=1)
    ids = np.array([[0, 3], [3, 3], [1, 0]], np.int32)
    got = run("mul_mat_id", weight, x, ids)
    for t in range(3):
        for u in range(2):
            np.testing.assert_allclose(
                got[t, u], weight[ids[t, u]] @ (x[t, u] if own else x[t]), rtol=1e-5, atol=1e-6
            )


def test_layout() -> None:
    x = normal(2, 3, 4)
    np.testing.assert_array_equal(run("reshape", x, tail=(2, 6), keep=1), x.reshape(2, 2, 6))
    np.testing.assert_array_equal(run("permute", x, axes=(2, 0, 1))[3, 1], x[1, :, 3])
    np.testing.assert_array_equal(run("columns", x, start=1, stop=3), x[..., 1:3])
    np.testing.assert_array_equal(run("concat", x, x[..., :1])[..., 4], x[..., 0])
