"""Rotary positions: pairs of dimensions rotated by the step's table, in a value or on the way to a cache."""

from __future__ import annotations

from graphml_gpu.kernels.attention.cache_stores import CacheStore, store_f32
from graphml_gpu.kernels.grid import element_number
from graphml_gpu.language import Read, Write, f32, function, i32, kernel, private_array, u32


@kernel
def rope(
    x: Read[f32], turns: Read[f32], out: Write[f32], n: u32, n_head: u32, head_dim: u32, pairs: u32,
    *, MODE: str = "norm", GROUP: int = 64,
) -> None:  # fmt: skip
    """out = x with the first 2 * pairs elements of each head rotated; out may be x.

    x, out [T, n_head, head_dim].
    turns [T, pairs, 2]: cosine, sine. MODE: "norm" turns neighbours, "neox" element i with i + pairs. An
    invocation turns a pair or copies an element behind them: n = T * n_head * (head_dim - pairs) of them.
    """
    i = element_number()
    if i < n:
        each = head_dim - pairs
        place = i % each
        head = i // each
        start = head * head_dim
        if place < pairs:
            at = (head // n_head * pairs + place) * 2
            cosine, sine = turns[at], turns[at + 1]
            first, second = start + place, start + place + pairs
            if MODE == "norm":
                first, second = start + 2 * place, start + 2 * place + 1
            x0, x1 = x[first], x[second]
            out[first] = x0 * cosine - x1 * sine
            out[second] = x0 * sine + x1 * cosine
        else:
            out[start + pairs + place] = x[start + pairs + place]


@function
def rotated(
    x: Read[f32], turns: Read[f32], token: u32, i: u32, width: u32, head_dim: u32, pairs: u32, MODE: str
) -> f32:
    """Element i of a token's row, rotated as `rope` does; as it is where MODE is "none"."""
    at = token * width + i
    value = x[at]
    if MODE != "none":
        place = i % head_dim
        if place < 2 * pairs:
            second = place >= pairs
            pair = place - pairs if second else place
            partner = place - pairs if second else place + pairs
            if MODE == "norm":
                second = (place & 1) == 1
                pair = place >> 1
                partner = place ^ 1
            other = x[at - place + partner]
            cosine = turns[(token * pairs + pair) * 2]
            sine = turns[(token * pairs + pair) * 2 + 1]
            value = value * cosine + (other * sine if second else -other * sine)
    return value


@function
def is_overwritten(cells: Read[i32], token: u32, tokens: u32) -> bool:
    """Whether a later token has the cell of this one."""
    other = token + 1
    while other < tokens:
        if cells[other] == cells[token]:
            break
        other += 1
    return other < tokens


@kernel
def write_rows(
    x: Read[f32], turns: Read[f32], cells: Read[i32], cache: Write[u32], n: u32, width: u32, head_dim: u32,
    pairs: u32, n_cells: u32, *, MODE: str = "none", UNIT: int = 1, STORE: CacheStore = store_f32,
    LOOKS: bool = False, GROUP: int = 64,
) -> None:  # fmt: skip
    """cache[cells[t]] = x[t], rotated by `turns` unless MODE is "none". x [T, width]; cache [n_cells, width].

    A token whose cell is outside is not written. LOOKS: of equal cells the last token's row is written;
    without it cells that are written are distinct.
    turns [T, pairs, 2] as of `rope`, for heads of head_dim elements. An invocation stores UNIT elements in a
    cache's dtype by STORE: n = T * width / UNIT of them.
    """
    i = element_number()
    if i < n:
        each = width // UNIT
        token = i // each
        unit = i % each
        cell = u32(cells[token])
        if LOOKS and is_overwritten(cells, token, n // each):
            cell = n_cells
        if cell < n_cells:
            values = private_array(f32, UNIT)
            for j in range(UNIT):
                values[j] = rotated(x, turns, token, unit * UNIT + j, width, head_dim, pairs, MODE)
            STORE(cache, cell * each + unit, values)
