"""Attention with a memory instead of a cache: the gated delta rule and its kin, over runs of tokens.

The threads share the rows of all heads' matrices, four at a time, and take the tokens of a sequence one after
the other: no thread waits for another. Knows sequences and heads; what a token does is in
`linear_attention_tiles`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from graphml_cpu.compiler import Address, Dim, Float, Int, RunAddress
from graphml_cpu.frontend import inline
from graphml_cpu.kernels.attention.paging import exp_of, slope_of
from graphml_cpu.kernels.attention.tiles import make_local_memory
from graphml_cpu.kernels.recurrent.linear_attention_tiles import DELTA, TILE_ROWS, make_memory_tile
from graphml_cpu.kernels.share import share
from graphml_cpu.kernels.vector_rows import put_zeros
from graphml_cpu.simd import WIDTH, f32, load_i32, store_f32

BLOCK = 16  # tokens


@inline
def _end_of_run(first: int, rows: int, sequences: int, positions: int) -> int:
    """The token behind the last that goes on where token `first` begins."""
    end = first + 1
    while end < rows:
        same = load_i32(sequences + end * 4) == load_i32(sequences + first * 4)
        if not same or load_i32(positions + end * 4) == 0:
            break
        end += 1
    return end


def make_memory_attention(
    rule: str, k_width: int, each: bool, before: bool, updates: int = 1
) -> Callable[..., None]:
    """out [rows, N, V] of queries and keys [rows, G, K] and values v [rows, N, V], float32; out may be v.

    state float32 [S, N, V, K]. A head reads keys of head n % G, if `grouped` of n // (N / G). decay, first,
    second: as of `make_memory_tile`; decay may be address 0, and `slope` is then a factor of ALiBi's slopes.
    sequences, positions int32 [rows], zeros for a token of a sequence outside. V is a multiple of 4.
    updates: of a token, k [rows, updates, G, K], v [rows, updates, N, V] and first [rows, updates, N].
    """
    tile = make_memory_tile(rule, k_width, math.gcd(k_width, WIDTH), each, before, updates)
    local = make_local_memory(64)
    decays, firsts = k_width if each else 1, 1 if rule == DELTA else k_width  # of each head

    def memory_attention(
        ith: Int, nth: Int, state: RunAddress, q: Address, k: Address, v: Address, decay: Address,
        first: Address, second: Address, sequences: Address, positions: Address, out: Address, n_head: Int,
        n_group: Int, grouped: Int, v_width: Int, scale: Float, slope: Float,
        n_sequences: Dim, rows: Dim,
    ) -> None:  # fmt: skip
        constant = local()
        tiles = v_width // TILE_ROWS
        begin, end = share(ith, nth, n_head * tiles)
        t = 0
        while t < rows:
            stop = _end_of_run(t, rows, sequences, positions)
            sequence = load_i32(sequences + t * 4)
            fresh = 1 if load_i32(positions + t * 4) == 0 else 0
            if not 0 <= sequence < n_sequences:
                for at in range(t, stop):
                    put_zeros(
                        out + (at * n_head * v_width + begin * TILE_ROWS) * 4, (end - begin) * TILE_ROWS
                    )
                t = stop
                continue
            for head in range(begin // tiles, (end + tiles - 1) // tiles):
                group = head // (n_head // n_group) if grouped != 0 else head % n_group
                if decay == 0:
                    store_f32(constant, exp_of(-slope * slope_of(head, n_head, f32(8.0))))
                lowest, highest = max(begin, head * tiles), min(end, (head + 1) * tiles)
                # Keys and queries of few tokens, which stay in the first cache for all rows of the head.
                for at in range(t, stop, BLOCK):
                    pair, query_at = at * n_head + head, (at * n_group + group) * k_width * 4
                    update = at * updates  # of all tokens
                    key_at, first_at = (update * n_group + group) * k_width * 4, update * n_head + head
                    fading, fading_step = decay + pair * decays * 4, n_head * decays * 4
                    if decay == 0:
                        fading, fading_step = constant, 0
                    for unit in range(lowest, highest):
                        tile_at = unit * TILE_ROWS * 4
                        tile(
                            state + (sequence * n_head * v_width + unit * TILE_ROWS) * k_width * 4,
                            q + query_at, k + key_at, n_group * k_width * 4,
                            v + update * n_head * v_width * 4 + tile_at,
                            out + at * n_head * v_width * 4 + tile_at,
                            n_head * v_width * 4, fading, fading_step, first + first_at * firsts * 4,
                            n_head * firsts * 4, second + first_at * firsts * 4, min(BLOCK, stop - at),
                            fresh if at == t else 0, scale,
                        )  # fmt: skip
            t = stop

    return memory_attention
