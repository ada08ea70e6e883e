"""Vector operations against NumPy, at the level of this process."""

import math
from typing import Any

import numpy as np
import pytest
from cpu_sample_kernels import WORDS
from graphml_cpu import target
from graphml_cpu.compiler import KernelRef, LoadedKernel, assembly, compile_kernels

from tests.looped import looped

MODULE = "cpu_sample_kernels"
NUMPY: dict[str, Any] = {
    "f32": np.float32,
    "f16": np.float16,
    "i8": np.int8,
    "u8": np.uint8,
    "i16": np.int16,
    "u16": np.uint16,
}
NUMPY |= {"i32": np.int32, "u32": np.uint32, "i64": np.int64}


def kernel(factory: str, *arguments: str | int) -> LoadedKernel:
    name = "-".join([factory, *map(str, arguments)])
    return compile_kernels([KernelRef(name, MODULE, factory, arguments)])[name]


def call(found: LoadedKernel, **values: Any) -> None:
    block = found.block(**{k: v.ctypes.data if isinstance(v, np.ndarray) else v for k, v in values.items()})
    found(block)


def numbers(element: str, count: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    kind = NUMPY[element]
    if np.issubdtype(kind, np.floating):
        return rng.normal(size=count).astype(kind)
    bounds = np.iinfo(kind)
    return rng.integers(bounds.min, bounds.max, count, dtype=kind, endpoint=True)


@looped("symbol", ["+", "-", "*", "&", "|", "^", "/"])
@looped("element", ["f32", "i8", "u8", "i16", "i32", "u32", "i64"])
def test_operators(symbol: str, element: str) -> None:
    is_float = element == "f32"
    if (symbol in "&|^") == is_float if symbol in "&|^/" else False:
        return
    if symbol == "/" and not is_float:
        return
    a, b = numbers(element, 8, 1), numbers(element, 8, 2)
    out = np.zeros_like(a)
    call(kernel("make_binary", symbol, element), a=a, b=b, out=out)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(out, eval(f"a {symbol} b"))


@looped("element", ["i8", "u8", "i32", "u32"])
@looped("symbol", ["<<", ">>"])
def test_shifts_follow_the_sign(symbol: str, element: str) -> None:
    a, b = numbers(element, 8), np.arange(8).astype(NUMPY[element])
    out = np.zeros_like(a)
    call(kernel("make_binary", symbol, element), a=a, b=b, out=out)
    np.testing.assert_array_equal(out, a << b if symbol == "<<" else a >> b)


@looped("symbol", ["<", "<=", ">", ">=", "==", "!="])
@looped("element", ["f32", "i8", "u8", "i32"])
def test_comparisons(symbol: str, element: str) -> None:
    a, b = numbers(element, 8, 1), numbers(element, 8, 2)
    b[:2] = a[:2]
    if element == "f32":
        a[7] = np.nan
    out = np.zeros_like(a)
    call(kernel("make_compare", symbol, element), a=a, b=b, out=out)
    np.testing.assert_array_equal(out, eval(f"a {symbol} b").astype(a.dtype))


@pytest.mark.parametrize("lanes", [4, 8, 16, 32])
@pytest.mark.parametrize("name", ["dot4", "dot4_signed"])
def test_dot_products_are_exact(name: str, lanes: int) -> None:
    rng = np.random.default_rng(3)
    count = 50
    shape = (count, lanes, 4)
    if name == "dot4":
        a = rng.integers(0, 127, shape, dtype=np.uint8, endpoint=True)
        b = rng.integers(-128, 127, shape, dtype=np.int8, endpoint=True)
        a[0], b[0], a[1], b[1] = 127, -128, 127, 127
    else:
        a = rng.integers(-128, 127, shape, dtype=np.int8, endpoint=True)
        b = rng.integers(-127, 127, shape, dtype=np.int8, endpoint=True)
        a[0], b[0], a[1], b[1] = -128, -127, -128, 127
    out = rng.integers(-1000, 1000, (count, lanes), dtype=np.int32)
    wanted = out + (a.astype(np.int32) * b).sum(-1)
    call(kernel("make_dot", name, lanes), a=a, b=b, out=out, n=count)
    np.testing.assert_array_equal(out, wanted)


def test_levels_use_their_instructions() -> None:
    text = assembly(KernelRef("dot", MODULE, "make_dot", ("dot4", target.current().f32_lanes)))
    level = target.current()
    assert ("vpdpbusd" in text) == level.has_vnni
    if level.name == "avx2":
        assert "vpmaddubsw" in text
    assert ("zmm" in text) == (level.name == "avx512")
    if level.name == "plain":
        assert "ymm" not in text


@pytest.mark.parametrize("lanes", [16, 32, 64])
def test_lookup(lanes: int) -> None:
    rng = np.random.default_rng(4)
    table = rng.integers(-128, 127, 16, dtype=np.int8)
    index = rng.integers(0, 16, lanes, dtype=np.uint8)
    out = np.zeros(lanes, np.int8)
    call(kernel("make_lookup", lanes), table=table, index=index, out=out)
    np.testing.assert_array_equal(out, table[index])


@looped("count", [64, 256, 512])
def test_words_are_looked_up(count: int) -> None:
    index, out = np.random.default_rng(5).integers(0, count, 32, np.uint16), np.zeros(32, np.uint16)
    call(kernel("make_word_lookup", count), index=index, out=out)
    np.testing.assert_array_equal(out, np.array(WORDS, np.uint16)[index])


@looped("lanes", [16, 32])
def test_floats_are_looked_up(lanes: int) -> None:
    index, out = np.random.default_rng(6).integers(0, 16, lanes, np.int32), np.zeros(lanes, np.float32)
    call(kernel("make_float_lookup", lanes), index=index, out=out)
    np.testing.assert_array_equal(out, (index * index / 4).astype(np.float32))


@looped("element", ["f32", "u8", "u16"])
def test_rows_anywhere_become_columns_and_rows_again(element: str) -> None:
    rows, again = numbers(element, 16 * 40).reshape(16, 40), np.zeros((16, 24), NUMPY[element])
    order, out = np.random.default_rng(7).permutation(16), np.zeros((16, 20), NUMPY[element])
    tables = [memory.ctypes.data + order * memory.strides[0] for memory in (rows, again)]
    call(kernel("make_columns", element, rows.itemsize), table=tables[0], out=out, other=tables[1])
    np.testing.assert_array_equal(out[:, :16], rows[order, 3:19].T)
    np.testing.assert_array_equal(again[:, 1:17], rows[:, 3:19])
    assert not out[:, 16:].any()
    assert not again[:, [0, *range(17, 24)]].any()


def test_rotations_and_gathered_words() -> None:
    x, out = numbers("u32", 8, 6), np.zeros(24, np.uint32)
    call(kernel("make_moves"), x=x, out=out)
    for found, counts in zip(out[:16].reshape(2, 8), ((0, 1, 4, 7, 8, 15, 28, 31), x & 31), strict=True):
        by = np.array(counts, np.uint64)
        wide = x.astype(np.uint64) << np.uint64(32) | x
        np.testing.assert_array_equal(found, (wide >> by).astype(np.uint32))
    wanted = [x.tobytes()[at : at + 8] for at in (0, 3, 24, 1)]
    assert out[16:].tobytes() == b"".join(wanted)


@looped("lanes", [8, 16, 32, 64])
def test_bits_are_masks(lanes: int) -> None:
    bits, out = numbers("u8", lanes // 8, lanes), np.full(lanes, 7, np.uint8)
    call(kernel("make_mask", lanes), bits=bits, out=out)
    np.testing.assert_array_equal(out, np.unpackbits(bits, bitorder="little"))


@pytest.mark.parametrize(
    ("source", "result"),
    [
        ("i8", "i32"),
        ("u8", "i32"),
        ("u8", "i16"),
        ("i32", "f32"),
        ("u8", "f32"),
        ("i32", "i8"),
        ("i16", "f32"),
    ],
)
def test_conversions_of_integers(source: str, result: str) -> None:
    x = numbers(source, 64)
    out = np.zeros(64, NUMPY[result])
    call(kernel("make_convert", source, result, 16), x=x, out=out, n=64)
    np.testing.assert_array_equal(out, x.astype(NUMPY[result]))


def test_float_to_integer_truncates() -> None:
    x = np.array([1.5, -1.5, 2.9, -2.9, 100.2, 0, -0.1, 7], np.float32)
    out = np.zeros(8, np.int32)
    call(kernel("make_convert", "f32", "i32", 8), x=x, out=out, n=8)
    np.testing.assert_array_equal(out, x.astype(np.int32))


def test_every_half_becomes_its_single() -> None:
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    singles = np.zeros(1 << 16, np.float32)
    call(kernel("make_halves"), halves=halves, singles=singles, n=1 << 16)
    np.testing.assert_array_equal(singles, halves.astype(np.float32))
    scalars, back = np.zeros_like(singles), np.zeros_like(halves)
    call(kernel("make_scalar_halves"), halves=halves, singles=scalars, back=back, n=1 << 16)
    np.testing.assert_array_equal(scalars, halves.astype(np.float32))
    np.testing.assert_array_equal(back, halves)


def test_singles_become_the_nearest_half() -> None:
    rng = np.random.default_rng(5)
    x = np.concatenate(
        [rng.normal(size=4096), 10.0 ** rng.uniform(-10, 6, 4096), [np.inf, -np.inf, 65520, 65519.9]]
    )
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    ties = (halves[:-1] + halves[1:]) / 2
    x = np.concatenate([x, ties, -ties, np.zeros(-(len(x) + 2 * len(ties)) % 16)]).astype(np.float32)
    out = np.zeros(len(x), np.float16)
    call(kernel("make_convert", "f32", "f16", 16), x=x, out=out, n=len(x))
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(out, x.astype(np.float16))


def test_bfloats() -> None:
    x = np.concatenate([numbers("f32", 1020), [np.inf, np.nan, 1 + 2**-8, 1 + 3 * 2**-8]]).astype(np.float32)
    bits, back = np.zeros(1024, np.uint16), np.zeros(1024, np.float32)
    call(kernel("make_bf16"), x=x, bits=bits, back=back, n=1024)
    whole = x.view(np.uint32).astype(np.uint64)
    wanted = ((whole + 0x7FFF + ((whole >> 16) & 1)) >> 16).astype(np.uint16)
    not_nan = ~np.isnan(x)
    np.testing.assert_array_equal(bits[not_nan], wanted[not_nan])
    assert np.isnan(back[~not_nan]).all()
    np.testing.assert_array_equal(back.view(np.uint32)[not_nan], bits.astype(np.uint32)[not_nan] << 16)


@pytest.mark.parametrize("lanes", [4, 16, 32])
def test_dot_products_of_bfloats_add_the_odd_product_and_then_the_even(lanes: int) -> None:
    count = 50
    shape = (count, lanes, 2)
    a, b = (
        (numbers("f32", math.prod(shape), seed).view(np.uint32) & 0xFFFF0000).view(np.float32).reshape(shape)
        for seed in (1, 2)
    )
    a[0], b[1], a[2, :, 0], a[3, :, 1] = np.inf, np.nan, 0, 0
    b[4] = 1e-40  # subnormal, and so zero for the instruction; the sum is the same, near 1
    out = 1 + numbers("f32", count * lanes, 3).reshape(shape[:2]) ** 2
    # Products of bfloat16 are exact in float64, and so are these sums of them: each is rounded once.
    with np.errstate(invalid="ignore"):
        terms = a.astype(np.float64) * b
        wanted = (((out + terms[..., 1]).astype(np.float32)) + terms[..., 0]).astype(np.float32)
    bits = [np.ascontiguousarray((x.view(np.uint32) >> 16).astype(np.uint16)) for x in (a, b)]
    call(kernel("make_dot2_bf16", lanes), a=bits[0], b=bits[1], out=out, n=count)
    np.testing.assert_array_equal(out, wanted)


@pytest.mark.parametrize("result", ["i8", "u8", "i16"])
def test_narrowing_saturates(result: str) -> None:
    x = np.concatenate([numbers("i32", 48), np.arange(-8, 8) * 50]).astype(np.int32)
    out = np.zeros(64, NUMPY[result])
    call(kernel("make_narrow", result), x=x, out=out, n=64)
    bounds = np.iinfo(NUMPY[result])
    np.testing.assert_array_equal(out, np.clip(x, bounds.min, bounds.max))


def test_lanes() -> None:
    x = numbers("f32", 8)
    out = np.zeros(32, np.float32)
    call(kernel("make_lanes"), x=x, out=out)
    np.testing.assert_array_equal(out[:8], x[::-1])
    np.testing.assert_array_equal(out[8:16], np.roll(x, 4))
    np.testing.assert_array_equal(out[16:20], [x[0], x[7], x[1], x[6]])
    np.testing.assert_allclose(out[20], x.sum(), rtol=1e-5)
    np.testing.assert_array_equal(out[21:24], [x.max(), x.min(), x[3]])
    np.testing.assert_array_equal(out[24:32], [*x[:2], 99, *x[3:]])


@looped("count", [0, 1, 3, 15, 16, 17, 33])
def test_partial_stores_touch_nothing_else(count: int) -> None:
    x = numbers("f32", 64)
    out = np.full(64, 7, np.float32)
    call(kernel("make_unary", "absolute"), x=x, out=out, n=count)
    np.testing.assert_array_equal(out[:count], np.abs(x[:count]))
    assert (out[count:] == 7).all()
