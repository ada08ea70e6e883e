"""Products whose sums do not depend on how many rows there are: the same bits for any rows and threads."""

import numpy as np
import pytest
from graphml_cpu import packed
from graphml_cpu.compiler import compile_kernels
from graphml_cpu.kernels.formats import has_reader, names
from graphml_cpu.kernels.products.integer_rows import make_read
from graphml_cpu.layouts import FEW_ROWS
from graphml_cpu.lowering.linear import product_kernel
from graphml_quant import by_name

from tests.cpu.test_mul_mat import (
    FLOATS,
    INTEGER,
    decoded,
    expected,
    make_weights,
    multiply,
    pack,
    tolerance,
    unpack,
)

N, ROWS = 37, 45


def form(kind: str) -> tuple[object, ...]:
    """What sums depend on in a format: two alike differ in how integers are read, which are summed exactly.

    How each reads them, tests/cpu/test_mul_mat.py says.
    """
    reader = make_read(kind)
    readers = (reader.read_rest, reader.read_numbers, reader.read_words, reader.sums)
    sizes = (reader.block_elements, reader.groups, reader.scales, reader.minima, reader.signed)
    return *sizes, *(one is None for one in readers)


FORMS = list({form(kind): kind for kind in INTEGER}.values())


def lengths(kind: str) -> tuple[int, ...]:
    """Row lengths: a rest of a group where blocks are small, and more columns than are taken at a time."""
    if kind in FLOATS:
        return 576, packed.ORDERED_COLUMNS + 256
    # A column of an interleaved token takes more than a byte: so many of ROWS tokens pass in two parts.
    interleaved = packed.INTERLEAVED_CACHE // ROWS // 256 * 256
    return (
        576 if by_name(kind).block_elements <= 64 else 768,
        max(packed.ORDERED_COLUMNS, interleaved) + 256,
    )


@pytest.mark.parametrize("kind", [*FORMS, *FLOATS])
def test_a_row_has_the_same_bits_in_any_company(kind: str) -> None:
    """Alone, among 2 to 7, 9, 33 and 45 rows, by rows and by panels, at any place; 1 to 3 threads in turn."""
    rng = np.random.default_rng(len(kind))
    ref = product_kernel(kind, one_order=True)
    kernel = compile_kernels([ref])[ref.name]
    for turn, k in enumerate(lengths(kind)):
        weights, x = make_weights(kind, N, k, rng), rng.normal(size=(ROWS, k)).astype(np.float32)
        bias = rng.normal(size=N).astype(np.float32)
        residual = rng.normal(size=(ROWS, N)).astype(np.float32)

        rows = [
            multiply(kernel, kind, weights, x[i : i + 1], 1, residual[i : i + 1], bias) for i in range(ROWS)
        ]
        alone = np.concatenate(rows)
        wanted = expected(kind, weights, x) + bias + residual
        assert (np.abs(alone - wanted) <= tolerance(kind, weights, x)).all()
        companies = ((0, 2), (1, 3), (2, 4), (3, 5), (0, 6), (1, 7), (4, 9), (5, 33), (0, ROWS))
        for at, (begin, count) in enumerate(companies, turn):
            some = slice(begin, begin + count)
            found = multiply(kernel, kind, weights, x[some], 1 + at % 3, residual[some], bias)
            np.testing.assert_array_equal(found, alone[some], err_msg=f"{k} {count} {at % 3}")
        found = multiply(kernel, kind, weights, x, 2, residual, bias, few_rows=FEW_ROWS)
        np.testing.assert_array_equal(found, alone, err_msg=f"{k}, {ROWS} without panels")


@pytest.mark.parametrize("kind", [kind for kind in ("q4_0", "q4_1", "q8_0") if kind in INTEGER])
@pytest.mark.parametrize("left", [1, 2, 3])
def test_a_rest_of_any_number_of_blocks_has_the_same_bits_in_any_company(kind: str, left: int) -> None:
    """Rests of one and two blocks are multiplied in half as many lanes as those of three."""
    rng = np.random.default_rng(left)
    ref, k = product_kernel(kind, one_order=True), 128 + 32 * left
    kernel = compile_kernels([ref])[ref.name]
    weights, x = make_weights(kind, N, k, rng), rng.normal(size=(ROWS, k)).astype(np.float32)
    alone = np.concatenate([multiply(kernel, kind, weights, x[i : i + 1]) for i in range(ROWS)])
    for count in (3, 4, 7, 16, ROWS):
        found = multiply(kernel, kind, weights, x[:count], few_rows=FEW_ROWS)
        np.testing.assert_array_equal(found, alone[:count], err_msg=f"{count} rows")


@pytest.mark.parametrize("kind", [kind for kind in ("q4_0", "q8_0") if kind in INTEGER])
def test_the_order_is_the_one_written_down(kind: str) -> None:
    """docs/cpu.md, in NumPy: exact sums of blocks, four sums by a block's place, then (0 + 1) + (2 + 3)."""
    rng = np.random.default_rng(0)
    ref, k, rows = product_kernel(kind, one_order=True), 576, 7
    kernel = compile_kernels([ref])[ref.name]
    weights, x = make_weights(kind, N, k, rng), rng.normal(size=(rows, k)).astype(np.float32)
    q, x_scale, _ = unpack(pack(x), k)
    blocks = k // 32
    stored = weights.reshape(N, blocks, -1)
    w_scale = stored[..., :2].copy().view(np.float16)[..., 0].astype(np.float32)
    with np.errstate(all="raise"):
        numbers = np.rint(decoded(kind, weights, k).reshape(N, blocks, 32) / w_scale[..., None].astype(float))
    sums = np.zeros((4, rows, N))
    for block in range(blocks):
        whole = np.einsum("ri,ni->rn", q[:, block].astype(np.int64), numbers[:, block].astype(np.int64))
        scaled = whole.astype(np.float32) * x_scale[:, block, None]
        # The product of two float32 is exact in float64, and the sum rounds once, to float32, as fma does.
        exact = scaled.astype(np.float64) * w_scale[None, :, block] + sums[block % 4]
        sums[block % 4] = exact.astype(np.float32)
    s = sums.astype(np.float32)
    np.testing.assert_array_equal(multiply(kernel, kind, weights, x), (s[0] + s[1]) + (s[2] + s[3]))


def test_every_format_is_tried() -> None:
    assert {name for name in names() if has_reader(name)} >= set(INTEGER)
    assert set(INTEGER) | set(FLOATS) >= {"q4_0", "f32"}
