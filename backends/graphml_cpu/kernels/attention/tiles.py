"""Register tiles of attention: loops whose accumulators stay in registers, built as LLVM IR.

A tile holds a small matrix of accumulators, one vector register each, more than one would write down as
variables. Each `make_...` gives an operation for one shape, called from a kernel with addresses. Knows
vectors and addresses; knows nothing of positions, masks or softmax.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import llvmlite.ir as ir

from graphml_cpu.frontend import types
from graphml_cpu.frontend.operation import operation
from graphml_cpu.kernels.attention.cache_elements import make_elements
from graphml_cpu.simd import build
from graphml_cpu.simd.bfloats import emit_dot2
from graphml_cpu.simd.types import VectorType, splat_value

_at, _fma, _load = build.shifted, build.multiply_add, build.load

_I64 = ir.IntType(64)
_I32 = ir.IntType(32)
_F32 = ir.FloatType()
# Cells that a tile reads together, whose dot products are summed across lanes together.
TILE_CELLS = 4
LINE_BYTES = 64
# Groups of a row that a loop has at most in each of its rounds.
_UNROLLED = 8


def make_local_memory(n_bytes: int) -> Any:
    """An operation `f()`: the address of `n_bytes` on the stack, aligned to 64; the same at every call.

    They hold anything: what is read has been written.
    """

    @operation
    def local_memory() -> Any:
        def emit(builder: ir.IRBuilder, *_args: Any) -> ir.Value:
            place = build.stack_slot(builder, ir.ArrayType(ir.IntType(8), n_bytes))
            place.align = 64
            return builder.ptrtoint(place, _I64)

        return types.int64(), emit

    return local_memory


def _multiply_pairs(builder: ir.IRBuilder, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
    return emit_dot2(builder, c, a, b)


def _splat_from(builder: ir.IRBuilder, address: ir.Value, lanes: int, element: ir.Type = _F32) -> ir.Value:
    kind = VectorType("f32" if element is _F32 else "i32", lanes)
    return splat_value(builder, _load(builder, address, element), kind)


def _accumulators(builder: ir.IRBuilder, initial: Sequence[ir.Value]) -> list[ir.Value]:
    """Stack slots that LLVM turns into registers."""
    slots = [build.stack_slot(builder, value.type) for value in initial]
    for slot, value in zip(slots, initial, strict=True):
        builder.store(value, slot)
    return slots


def _fetch(builder: ir.IRBuilder, entry: ir.Value, n_bytes: int) -> None:
    """So many bytes at the address that a table's entry holds come into the second cache."""
    if n_bytes:
        piece = _load(builder, entry, _I64)
        for line in range(0, n_bytes, LINE_BYTES):
            build.prefetch(builder, build.pointer(builder, _at(builder, piece, line), ir.IntType(8)), 2)


def sums_of_four(builder: ir.IRBuilder, vectors: list[ir.Value]) -> ir.Value:
    """The sums over the lanes of each of four vectors, as one vector of four."""
    group = vectors[0].type.count  # lanes that belong to the same sum
    while len(vectors) > 1:
        lanes = vectors[0].type.count
        merged = []
        for a, b in zip(vectors[::2], vectors[1::2], strict=True):
            if group == 1:
                merged.append(build.concatenate(builder, a, b))
                continue
            low = [lane for lane in range(2 * lanes) if lane % group < group // 2]
            high = [lane + group // 2 for lane in low]
            merged.append(builder.fadd(build.shuffle(builder, a, b, low), build.shuffle(builder, a, b, high)))
        vectors, group = merged, max(group // 2, 1)
    (total,) = vectors
    lanes, distance = total.type.count, group // 2
    while distance:
        shuffled = build.shuffle(builder, total, None, [lane ^ distance for lane in range(lanes)])
        total, distance = builder.fadd(total, shuffled), distance // 2
    return build.shuffle(builder, total, None, range(0, lanes, group)) if lanes > TILE_CELLS else total


def make_score_tile(heads: int, d: int, lanes: int, dtype: str, out_bytes: int, ahead_bytes: int = 0) -> Any:
    """An operation `f(q, cells, k, row_bytes, out, pieces)`: dot products of `heads` queries with 4 rows.

    q float32 [heads, d]; cells int64 [4]; row c of the cache is d elements of `dtype` at k + c * row_bytes;
    out float32, 4 in a row per head, heads `out_bytes` apart. `lanes` divides d, and whole blocks make d.
    Meanwhile `ahead_bytes` at each of `pieces`, int64 [4], are fetched into the second cache.
    """
    single = ir.VectorType(_F32, lanes)
    elements = make_elements(dtype, lanes)
    groups = d // elements.elements
    unrolled = max(n for n in range(1, _UNROLLED + 1) if groups % n == 0)

    @operation
    def score_tile(q: Any, cells: Any, k: Any, row_bytes: Any, out: Any, pieces: Any) -> Any:
        def emit(builder: ir.IRBuilder, *args: Any) -> None:
            q, cells, k, row_bytes, out, pieces = args
            rows = []
            for row in range(TILE_CELLS):
                _fetch(builder, _at(builder, pieces, row * 8), ahead_bytes)
                cell = _load(builder, _at(builder, cells, row * 8), _I64)
                rows.append(builder.add(k, builder.mul(cell, row_bytes)))
            sums = _accumulators(builder, [build.constant(single, 0.0)] * (heads * TILE_CELLS))
            with build.counted_loop(builder, _I64(groups // unrolled)) as index:
                offset = builder.mul(index, _I64(unrolled * elements.n_bytes))
                at = [builder.add(row, offset) for row in rows]
                q_at = builder.add(q, builder.mul(index, _I64(unrolled * elements.elements * 4)))
                for vector, head in itertools.product(range(unrolled * elements.vectors), range(heads)):
                    if head == 0:
                        keys = [elements.load_at(builder, row, vector) for row in at]
                    query = _load(builder, _at(builder, q_at, (head * d + vector * lanes) * 4), single)
                    for row, key in enumerate(keys):
                        slot = sums[head * TILE_CELLS + row]
                        builder.store(_fma(builder, query, key, builder.load(slot)), slot)
            for head in range(heads):
                four = [builder.load(slot) for slot in sums[head * TILE_CELLS : (head + 1) * TILE_CELLS]]
                total = sums_of_four(builder, four)
                builder.store(
                    total, build.pointer(builder, _at(builder, out, head * out_bytes), total.type), align=1
                )

        return types.none(*[types.int64] * 6), emit

    return score_tile


def make_weigh_tile(
    heads: int, vectors: int, lanes: int, dtype: str, weights_bytes: int, out_bytes: int, ahead_bytes: int = 0
) -> Any:
    """An operation `f(weights, cells, count, v, row_bytes, alpha, out, pieces)`.

    It computes out = out * alpha + weights @ rows, TILE_CELLS rows in each round.

    weights float32 [heads, count], heads `weights_bytes` apart; cells int64 [count], count whole tiles; row c
    of the cache is vectors * lanes elements of `dtype` (whole blocks) at v + c * row_bytes; alpha float32
    [heads]; out float32 [heads, vectors * lanes], heads `out_bytes` apart. Meanwhile `ahead_bytes` at each of
    `pieces`, int64 [count], are fetched into the second cache.
    """
    single = ir.VectorType(_F32, lanes)
    elements = make_elements(dtype, lanes)
    shape = [(head, part) for head in range(heads) for part in range(vectors)]

    @operation
    def weigh_tile(
        weights: Any, cells: Any, count: Any, v: Any, row_bytes: Any, alpha: Any, out: Any,
        pieces: Any,
    ) -> Any:  # fmt: skip
        def emit(builder: ir.IRBuilder, *args: Any) -> None:
            weights, cells, count, v, row_bytes, alpha, out, pieces = args
            places = [_at(builder, out, head * out_bytes + part * lanes * 4) for head, part in shape]
            alphas = [_splat_from(builder, _at(builder, alpha, head * 4), lanes) for head in range(heads)]
            initial = [
                builder.fmul(_load(builder, place, single), alphas[head])
                for place, (head, _) in zip(places, shape, strict=True)
            ]
            sums = _accumulators(builder, initial)
            with build.counted_loop(builder, builder.lshr(count, _I64(TILE_CELLS.bit_length() - 1))) as index:
                first = builder.mul(index, _I64(TILE_CELLS))
                entry, weight = builder.mul(first, _I64(8)), builder.mul(first, _I64(4))
                for i in range(TILE_CELLS):
                    cell = _load(builder, _at(builder, builder.add(cells, entry), i * 8), _I64)
                    row = builder.add(v, builder.mul(cell, row_bytes))
                    _fetch(builder, _at(builder, builder.add(pieces, entry), i * 8), ahead_bytes)
                    values = [elements.load_at(builder, row, part) for part in range(vectors)]
                    weight_at = _at(builder, builder.add(weights, weight), i * 4)
                    factors = [
                        _splat_from(builder, _at(builder, weight_at, head * weights_bytes), lanes)
                        for head in range(heads)
                    ]
                    for slot, (head, part) in zip(sums, shape, strict=True):
                        builder.store(_fma(builder, factors[head], values[part], builder.load(slot)), slot)
            for place, slot in zip(places, sums, strict=True):
                build.store(builder, builder.load(slot), place)

        return types.none(*[types.int64] * 8), emit

    return weigh_tile


def make_outer_tile(rows: int, vectors: int, lanes: int, rescaled: bool, pairs: bool = False) -> Any:
    """An operation `f(a, a_row, a_step, b, b_step, count, out, out_row, alpha)`: out = out * alpha + a @ b.

    a float32 [rows, count] with strides `a_row` and `a_step`; b float32 [count, vectors * lanes], rows
    `b_step` apart; out float32 [rows, vectors * lanes], rows `out_row` apart; alpha float32 [vectors *
    lanes], one factor per column. All strides in bytes. Without `rescaled`, out = a @ b and neither out nor
    alpha is read. pairs: an element of a and b is two bfloat16, of neighbours in the sum.
    """
    single = ir.VectorType(_F32, lanes)
    element = _I32 if pairs else _F32
    multiply_add = _multiply_pairs if pairs else _fma
    shape = [(row, part) for row in range(rows) for part in range(vectors)]

    @operation
    def outer_tile(
        a: Any, a_row: Any, a_step: Any, b: Any, b_step: Any, count: Any, out: Any,
        out_row: Any, alpha: Any,
    ) -> Any:  # fmt: skip
        def emit(builder: ir.IRBuilder, *args: Any) -> None:
            a, a_row, a_step, b, b_step, count, out, out_row, alpha = args
            a_rows = [builder.mul(a_row, _I64(row)) for row in range(rows)]
            out_rows = [builder.add(out, builder.mul(out_row, _I64(row))) for row in range(rows)]
            places = [_at(builder, out_rows[row], part * lanes * 4) for row, part in shape]
            initial = [build.constant(single, 0.0)] * len(shape)
            if rescaled:
                alphas = [
                    _load(builder, _at(builder, alpha, part * lanes * 4), single) for part in range(vectors)
                ]
                initial = [
                    builder.fmul(_load(builder, place, single), alphas[part])
                    for place, (_, part) in zip(places, shape, strict=True)
                ]
            sums = _accumulators(builder, initial)
            with build.counted_loop(builder, count) as index:
                a_at = builder.add(a, builder.mul(index, a_step))
                b_at = builder.add(b, builder.mul(index, b_step))
                columns = [
                    _load(builder, _at(builder, b_at, part * lanes * 4), ir.VectorType(element, lanes))
                    for part in range(vectors)
                ]
                for row in range(rows):
                    factor = _splat_from(builder, builder.add(a_at, a_rows[row]), lanes, element)
                    for part, column in enumerate(columns):
                        slot = sums[row * vectors + part]
                        builder.store(multiply_add(builder, factor, column, builder.load(slot)), slot)
            for place, slot in zip(places, sums, strict=True):
                build.store(builder, builder.load(slot), place)

        return types.none(*[types.int64] * 9), emit

    return outer_tile
