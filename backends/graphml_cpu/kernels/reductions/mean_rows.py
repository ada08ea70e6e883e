"""Means of the rows of each sequence: the pooling of embeddings. The threads share the columns.

Knows rows, and which sequence each is of; sums run in float32, row after row.
"""

from __future__ import annotations

from collections.abc import Callable

from graphml_cpu.compiler import Address, Dim, Int
from graphml_cpu.kernels.share import share
from graphml_cpu.simd import F32, WIDTH, f32, load_i32, load_partial, store_partial, zero


def make_mean_rows() -> Callable[..., None]:
    """out[s] = mean of x[i] over all i with sequences[output_rows[i]] == s; zeros where there are none.

    Rows whose token is outside 0 .. n_tokens - 1 are left out.
    x float32 [rows, n]; output_rows int32 [rows]; sequences int32, one for each token; out float32
    [n_sequences, n].
    """

    def mean_rows(
        ith: Int, nth: Int, x: Address, output_rows: Address, sequences: Address, out: Address, n: Int,
        n_sequences: Dim, n_tokens: Dim, rows: Dim,
    ) -> None:  # fmt: skip
        begin, end = share(ith, nth, (n + WIDTH - 1) // WIDTH)
        for block in range(begin, end):
            at = block * WIDTH
            count = min(WIDTH, n - at)
            for sequence in range(n_sequences):
                total, found = zero(F32), 0
                for row in range(rows):
                    token = load_i32(output_rows + row * 4)
                    inside = 0 <= token < n_tokens
                    if inside and load_i32(sequences + token * 4) == sequence:
                        total = total + load_partial(F32, x + (row * n + at) * 4, count)
                        found += 1
                factor = f32(1.0) / f32(max(found, 1))
                store_partial(out + (sequence * n + at) * 4, total * factor, count)

    return mean_rows
