"""Positions of a step, in one dispatch: queries rotated, keys rotated and kept, values kept."""

from __future__ import annotations

from graphml_gpu.kernels.attention.cache_stores import CacheStore, store_f32
from graphml_gpu.kernels.grid import element_number
from graphml_gpu.kernels.positions.rope import rotated
from graphml_gpu.language import Read, Write, f32, function, i32, kernel, private_array, u32


@function
def _keep(
    cache: Write[u32], x: Read[f32], turns: Read[f32], cells: Read[i32], i: u32, width: u32, head_dim: u32,
    pairs: u32, n_cells: u32, MODE: str, UNIT: int, STORE: CacheStore,
) -> None:  # fmt: skip
    each = width // UNIT
    token = i // each
    unit = i % each
    if u32(cells[token]) < n_cells:
        values = private_array(f32, UNIT)
        for j in range(UNIT):
            values[j] = rotated(x, turns, token, unit * UNIT + j, width, head_dim, pairs, MODE)
        STORE(cache, u32(cells[token]) * each + unit, values)


@kernel
def rope_writes(
    q: Read[f32], k: Read[f32], v: Read[f32], turns: Read[f32], cells: Read[i32], out: Write[f32],
    k_cache: Write[u32], v_cache: Write[u32], n_q: u32, n_k: u32, n_v: u32, q_width: u32, k_width: u32,
    v_width: u32, head_dim: u32, pairs: u32, n_k_cells: u32, n_v_cells: u32,
    *, MODE: str = "norm", K_UNIT: int = 1, V_UNIT: int = 1, STORE_K: CacheStore = store_f32,
    STORE_V: CacheStore = store_f32, GROUP: int = 64,
) -> None:  # fmt: skip
    """out = q rotated; k_cache[cells[t]] = k[t] rotated; v_cache[cells[t]] = v[t]. Cells are distinct.

    q, out [T, q_width], k [T, k_width], v [T, v_width]; heads of head_dim elements, rotated by turns
    [T, pairs, 2] as of `rope`; out may be q. An invocation turns a pair of q (or copies two elements behind
    them), of n_q; or keeps K_UNIT elements of keys, of n_k; or V_UNIT of values, of n_v.
    """
    i = element_number()
    if i < n_q:
        half = q_width // 2
        token = i // half
        place = i % half
        each = head_dim // 2
        start = token * q_width + place // each * head_dim
        pair = place % each
        first, second = start + 2 * pair, start + 2 * pair + 1
        if pair < pairs:
            if MODE == "neox":
                first, second = start + pair, start + pair + pairs
            at = (token * pairs + pair) * 2
            cosine, sine = turns[at], turns[at + 1]
            x0, x1 = q[first], q[second]
            out[first] = x0 * cosine - x1 * sine
            out[second] = x0 * sine + x1 * cosine
        else:
            out[first] = q[first]
            out[second] = q[second]
    elif i < n_q + n_k:
        _keep(k_cache, k, turns, cells, i - n_q, k_width, head_dim, pairs, n_k_cells, MODE, K_UNIT, STORE_K)
    elif i < n_q + n_k + n_v:
        _keep(
            v_cache, v, turns, cells, i - n_q - n_k, v_width, head_dim, pairs, n_v_cells, "none", V_UNIT,
            STORE_V,
        )  # fmt: skip
