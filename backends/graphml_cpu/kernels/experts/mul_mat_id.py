"""Rows of numbers times the matrices of chosen experts, in any weight format: each is decoded once at most.

A thread takes a range of weight rows of every expert. It sorts the (token, slot) pairs by expert, each thread
for itself, so that nobody waits; then it multiplies each expert's pairs block by block with its rows. Experts
that nobody chose are not read. Knows pairs and experts; how a block is multiplied, and why the result of a
token depends on nothing else, is in `panel_products`.
"""

from __future__ import annotations

from collections.abc import Callable

from graphml_cpu.compiler import Address, Dim, Int
from graphml_cpu.frontend import inline
from graphml_cpu.kernels.experts.expert_pairs import find_begins, next_place
from graphml_cpu.kernels.products.panel_products import list_token, make_multiply_block
from graphml_cpu.kernels.share import share
from graphml_cpu.kernels.vector_rows import put_zeros
from graphml_cpu.layouts import PANEL_ROWS, TOKEN_BLOCK, panel_scratch_bytes
from graphml_cpu.simd import load_i32, store_i32

_panel_scratch_bytes = inline(panel_scratch_bytes)


def make_mul_mat_id(format: str, one_order: bool = False) -> Callable[..., None]:
    """y[t, u] = decoded(w[ids[t, u]]) @ x[t, u], for weights of `format`, a name of `kernels.formats`.

    With `packed.BF16_PAIRS` the weights are BF16 and the rows of x packed to bfloat16. one_order: the sums of
    a pair do not depend on how many share its expert.

    w: n_experts matrices, `expert_bytes` apart, of n rows of k elements, `row_bytes` apart. ids int32
    [T, n_used], zeros for one outside 0 .. n_experts - 1. x float32 rows of k, `x_token_stride` bytes from
    token to token and `x_slot_stride` from slot to slot (0: the slots of a token share its row). y float32
    [T, n_used, n], rows `y_stride` bytes apart. pairs: T * n_used. scratch: this thread's own
    `layouts.expert_scratch_bytes(k, n_experts, pairs)` bytes. k as for `mul_mat_panels`.
    """
    multiply_block = make_multiply_block(format, one_order)

    def mul_mat_id(
        ith: Int, nth: Int, w: Address, x: Address, ids: Address, y: Address, n_experts: Int, n_used: Int,
        n: Int, k: Int, expert_bytes: Int, row_bytes: Int, x_token_stride: Int, x_slot_stride: Int,
        y_stride: Int, scratch: Address, pairs: Dim,
    ) -> None:  # fmt: skip
        begin, end = share(ith, nth, (n + PANEL_ROWS - 1) // PANEL_ROWS)
        begin, end = begin * PANEL_ROWS, min(end * PANEL_ROWS, n)
        ends = scratch + _panel_scratch_bytes(k)
        order = ends + (n_experts + 1) * 4
        find_begins(ids, pairs, n_experts, ends)
        for pair in range(pairs):
            store_i32(order + next_place(ids, pair, n_experts, ends) * 4, pair)
        first = 0
        for expert in range(n_experts):
            last = load_i32(ends + expert * 4)
            for block in range(first, last, TOKEN_BLOCK):
                tokens = min(TOKEN_BLOCK, last - block)
                for i in range(tokens):
                    pair = load_i32(order + (block + i) * 4)
                    token = pair // n_used
                    row = x + token * x_token_stride + (pair - token * n_used) * x_slot_stride
                    list_token(scratch, i, row, y + pair * y_stride, 0)
                multiply_block(w + expert * expert_bytes, row_bytes, begin, end, k, tokens, 0, scratch)
            first = last
        for i in range(first, pairs):
            put_zeros(y + load_i32(order + i * 4) * y_stride + begin * 4, end - begin)

    return mul_mat_id
