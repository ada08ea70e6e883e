"""Rotary position embedding: the table of cosines and sines, rotation of rows, rotation into a cache.

Knows tables and rows; knows nothing of models, frequencies or scaling (the host folds those into
`frequencies`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from graphml.errors import BackendError
from graphml.ir.dtype import dtype as dtype_of
from graphml_cpu.compiler import Address, Dim, Float, Int, RunAddress
from graphml_cpu.frontend import inline
from graphml_cpu.kernels.attention.cache_elements import row_bytes
from graphml_cpu.kernels.attention.cache_write import is_overwritten
from graphml_cpu.kernels.attention.tiles import make_local_memory
from graphml_cpu.kernels.formats import make_encode
from graphml_cpu.kernels.share import Vector, share
from graphml_cpu.kernels.storage import make_storage
from graphml_cpu.layouts import LARGEST_HEAD
from graphml_cpu.simd import (
    F32,
    I32,
    WIDTH,
    bitcast,
    convert,
    fma,
    load,
    load_i32,
    load_partial,
    ramp,
    select,
    shuffle_by,
    shuffle_pair_by,
    splat,
    store,
    store_partial,
    vector,
)

_PAIRS = WIDTH // 2
_F64 = vector("f64", _PAIRS)
_I64 = vector("i64", _PAIRS)
_HALF = vector("f32", _PAIRS)
# Adding this leaves the nearest integer of a number below 2**51 in the low bits of the sum.
_ROUNDER = 1.5 * 2.0**52

_even_lanes = shuffle_by([lane // 2 * 2 for lane in range(WIDTH)])
_odd_lanes = shuffle_by([lane // 2 * 2 + 1 for lane in range(WIDTH)])
_neighbours = shuffle_by([lane ^ 1 for lane in range(WIDTH)])
_first_of_pairs = shuffle_pair_by(range(0, 2 * WIDTH, 2))
_second_of_pairs = shuffle_pair_by(range(1, 2 * WIDTH, 2))
_interleave = shuffle_pair_by([lane // 2 + lane % 2 * _PAIRS for lane in range(WIDTH)])


@inline
def _cos_sin(angle: Vector) -> tuple[Vector, Vector]:
    """Cosine and sine of float64 angles up to 1e9: within 1e-10 up to 1e6."""
    shifted = fma(angle, splat(_F64, 2 / math.pi), splat(_F64, _ROUNDER))
    turns = shifted - _ROUNDER
    quadrant = bitcast(_I64, shifted) & 3
    r = fma(turns, splat(_F64, -math.pi / 2), angle)
    z = r * r
    p = fma(z, splat(_F64, 2.755509525441055e-06), splat(_F64, -0.00019841262344502545))
    p = fma(z, p, splat(_F64, 0.008333333321872291))
    sine = fma(r * z, fma(z, p, splat(_F64, -0.16666666666605653)), r)
    q = fma(z, splat(_F64, 2.06453036708399e-09), splat(_F64, -2.7555525454096104e-07))
    q = fma(z, q, splat(_F64, 2.4801580718506995e-05))
    q = fma(z, q, splat(_F64, -0.0013888888877640966))
    q = fma(z, q, splat(_F64, 0.04166666666659699))
    cosine = fma(z * z, q, fma(z, splat(_F64, -0.5), splat(_F64, 1.0)))
    swapped = (quadrant & 1) == 1
    c, s = select(swapped, sine, cosine), select(swapped, cosine, sine)
    return select(((quadrant + 1) & 2) == 2, -c, c), select((quadrant & 2) == 2, -s, s)


def make_rope_table() -> Callable[..., None]:
    """out[t, i] = (cos, sin)(positions[t] * frequencies[i]) * scale, each within 1e-7 * scale.

    positions int32 [rows]; frequencies float64 [n_half] (radians per position: float32 would be wrong by
    0.06 at position 1e6); out float32 [rows, n_half, 2].
    """

    def rope_table(
        ith: Int, nth: Int, positions: Address, frequencies: Address, scale: Float, out: Address, n_half: Int,
        rows: Dim,
    ) -> None:  # fmt: skip
        begin, end = share(ith, nth, rows)
        for row in range(begin, end):
            position = splat(_F64, float(load_i32(positions + row * 4)))
            to = out + row * n_half * 8
            for i in range(0, n_half, _PAIRS):
                rest = n_half - i
                if rest >= _PAIRS:
                    c, s = _cos_sin(load(_F64, frequencies + i * 8) * position)
                    store(to + i * 8, _interleave(convert(_HALF, c), convert(_HALF, s)) * scale)
                else:
                    c, s = _cos_sin(load_partial(_F64, frequencies + i * 8, rest) * position)
                    both = _interleave(convert(_HALF, c), convert(_HALF, s)) * scale
                    store_partial(to + i * 8, both, rest * 2)

    return rope_table


@inline
def _rotate_neighbours(x: Vector, table: Vector) -> Vector:
    """Pairs (x0, x1) of neighbouring lanes rotated by (cos, sin) in the same lanes of `table`."""
    sign = select((ramp(I32) & 1) == 0, splat(F32, -1.0), splat(F32, 1.0))
    return fma(_neighbours(x) * sign, _odd_lanes(table), x * _even_lanes(table))


def _make_rotate_norm(out_bytes: int, store_all: Any, store_some: Any) -> Any:
    @inline
    def rotate(x: int, table: int, out: int, n_rot: int) -> None:
        whole = n_rot - n_rot % WIDTH
        for i in range(0, whole, WIDTH):
            y = _rotate_neighbours(load(F32, x + i * 4), load(F32, table + i * 4))
            store_all(out + i * out_bytes, y)
        if whole < n_rot:
            rest = n_rot - whole
            v, t = load_partial(F32, x + whole * 4, rest), load_partial(F32, table + whole * 4, rest)
            store_some(out + whole * out_bytes, _rotate_neighbours(v, t), rest)

    return rotate


def _make_rotate_neox(out_bytes: int, store_all: Any, store_some: Any) -> Any:
    @inline
    def rotate(x: int, table: int, out: int, n_rot: int) -> None:
        half = n_rot // 2
        whole = half - half % WIDTH
        upper_x, upper_out = x + half * 4, out + half * out_bytes
        for i in range(0, whole, WIDTH):
            a, b = load(F32, x + i * 4), load(F32, upper_x + i * 4)
            t, u = load(F32, table + i * 8), load(F32, table + i * 8 + WIDTH * 4)
            c, s = _first_of_pairs(t, u), _second_of_pairs(t, u)
            store_all(out + i * out_bytes, a * c - b * s)
            store_all(upper_out + i * out_bytes, a * s + b * c)
        if whole < half:
            rest = half - whole
            a, b = load_partial(F32, x + whole * 4, rest), load_partial(F32, upper_x + whole * 4, rest)
            t = load_partial(F32, table + whole * 8, rest * 2)
            u = load_partial(F32, table + whole * 8 + WIDTH * 4, rest * 2 - WIDTH)
            c, s = _first_of_pairs(t, u), _second_of_pairs(t, u)
            store_some(out + whole * out_bytes, a * c - b * s, rest)
            store_some(upper_out + whole * out_bytes, a * s + b * c, rest)

    return rotate


def _make_head(mode: str, dtype: str) -> Any:
    """`head(x, table, out, head_dim, n_rot)`: one head rotated, the dimensions past n_rot copied."""
    storage = make_storage(dtype)
    out_bytes, store_all, store_some = storage.item_bytes, storage.store, storage.store_partial
    makers = {"norm": _make_rotate_norm, "neox": _make_rotate_neox}
    if mode not in makers:
        raise BackendError(f"rope: wanted mode 'norm' or 'neox'; got {mode!r}")
    rotate = makers[mode](out_bytes, store_all, store_some)

    @inline
    def head(x: int, table: int, out: int, head_dim: int, n_rot: int) -> None:
        rotate(x, table, out, n_rot)
        for i in range(n_rot, head_dim, WIDTH):
            rest = head_dim - i
            if rest >= WIDTH:
                store_all(out + i * out_bytes, load(F32, x + i * 4))
            else:
                store_some(out + i * out_bytes, load_partial(F32, x + i * 4, rest), rest)

    return head


def make_rope(mode: str) -> Callable[..., None]:
    """Each head of each row rotated by the row's angles.

    `mode` "norm" turns the pairs (2i, 2i + 1), "neox" the pairs (i, i + n_rot / 2).

    x and out float32 [rows, n_head, head_dim], heads side by side, rows `x_stride` and `out_stride` bytes
    apart; out may be x. table float32 [rows, n_rot / 2, 2] from `rope_table`. Dimensions past n_rot are
    copied.
    """
    head = _make_head(mode, "f32")

    def rope(
        ith: Int, nth: Int, x: Address, table: Address, out: Address, n_head: Int, head_dim: Int, n_rot: Int,
        x_stride: Int, out_stride: Int, rows: Dim,
    ) -> None:  # fmt: skip
        begin, end = share(ith, nth, rows * n_head)
        for unit in range(begin, end):
            row = unit // n_head
            offset = (unit - row * n_head) * head_dim * 4
            to = out + row * out_stride + offset
            head(x + row * x_stride + offset, table + row * n_rot * 4, to, head_dim, n_rot)

    return rope


def _make_stored_head(mode: str, dtype: str) -> Any:
    """As `_make_head`, for every type of cache: blocks are quantised from the rotated head."""
    if dtype_of(dtype).block_elements == 1:
        return _make_head(mode, dtype)
    rotate, write = _make_head(mode, "f32"), make_encode(dtype)
    local_head = make_local_memory(LARGEST_HEAD * 4)

    @inline
    def head(x: int, table: int, out: int, head_dim: int, n_rot: int) -> None:
        rotated = local_head()
        rotate(x, table, rotated, head_dim, n_rot)
        write(rotated, out, head_dim)

    return head


def make_rope_cache_write(mode: str, dtype: str, looks: bool) -> Callable[..., None]:
    """`rope`, its result rounded or quantised to `dtype`, one of `CACHE_DTYPES`, in the cache's cells.

    x float32 [rows, n_head, head_dim]; cells and `looks` as of `attention.cache_write`; cache `dtype`
    [n_cells, n_head, head_dim]. Heads of a block format are whole blocks, at most LARGEST_HEAD elements.
    """
    head = _make_stored_head(mode, dtype)
    block = dtype_of(dtype).block_elements
    block_bytes = row_bytes(dtype, block)

    def rope_cache_write(
        ith: Int, nth: Int, x: Address, table: Address, cells: Address, cache: RunAddress, n_head: Int,
        head_dim: Int, n_rot: Int, x_stride: Int, n_cells: Dim, rows: Dim,
    ) -> None:  # fmt: skip
        begin, end = share(ith, nth, rows * n_head)
        for unit in range(begin, end):
            row = unit // n_head
            if looks and is_overwritten(cells, row, rows):
                continue
            index = unit - row * n_head
            cell = load_i32(cells + row * 4)
            if 0 <= cell < n_cells:
                to = cache + (cell * n_head + index) * (head_dim // block * block_bytes)
                source = x + row * x_stride + index * head_dim * 4
                head(source, table + row * n_rot * 4, to, head_dim, n_rot)

    return rope_cache_write
