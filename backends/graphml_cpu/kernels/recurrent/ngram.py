"""Rows of a table by hashes of the last few tokens; the tokens before the step are the state.

One thread does it: it is a few numbers for each token. Knows ids; nothing of the table.
"""

from __future__ import annotations

from collections.abc import Callable

from graphml_cpu.compiler import Address, Dim, Int, RunAddress
from graphml_cpu.frontend import inline
from graphml_cpu.simd import f32, load_f32, load_i32, load_i64, store_f32, store_i32


@inline
def _token_before(t: int, back: int, first: int, tokens: int, mine: int, before: int) -> int:
    """The token `back` places before token t, from the step or from the state."""
    if t - back >= first:
        return load_i32(tokens + (t - back) * 4)
    return int(load_f32(mine + (before - back + t - first) * 4))


@inline
def _is_last(t: int, rows: int, sequences: int, positions: int) -> int:
    """1 where no token of the same run follows."""
    last = 1
    if t + 1 < rows:
        same = load_i32(sequences + (t + 1) * 4) == load_i32(sequences + t * 4)
        if same and load_i32(positions + (t + 1) * 4) != 0:
            last = 0
    return last


@inline
def _remainder(word: int, size: int) -> int:
    """What 64 bits without a sign leave when divided by a size below 2**31."""
    half = (word >> 1) & 0x7FFFFFFFFFFFFFFF
    return ((half % size) * 2 + (word & 1)) % size


@inline
def _no_rows(out: int, n_head: int) -> None:
    """Zeros, for a token of a sequence that the state does not have."""
    for head in range(n_head):
        store_i32(out + head * 4, 0)


def make_ngram_rows() -> Callable[..., None]:
    """out int32 [rows, n_head]: rows of the table for each token, as `ngram_rows` means them.

    state float32 [S, n - 1]; tokens, sequences, positions int32 [rows]; multipliers int64 [n]; sizes, offsets
    int64 [n_head].
    """

    def ngram_rows(
        ith: Int, nth: Int, state: RunAddress, tokens: Address, sequences: Address, positions: Address,
        multipliers: Address, sizes: Address, offsets: Address, out: Address, n: Int, n_head: Int, eos: Int,
        n_sequences: Dim, rows: Dim,
    ) -> None:  # fmt: skip
        if ith > 0:
            return
        before = n - 1
        each = n_head // before
        first = 0
        for t in range(rows):
            sequence = load_i32(sequences + t * 4)
            position = load_i32(positions + t * 4)
            if t > 0 and (position == 0 or sequence != load_i32(sequences + (t - 1) * 4)):
                first = t
            if not 0 <= sequence < n_sequences:
                _no_rows(out + t * n_head * 4, n_head)
                continue
            mine = state + sequence * before * 4
            mixed = load_i32(tokens + t * 4) * load_i64(multipliers)
            hidden = 0
            for back in range(1, n):
                token = _token_before(t, back, first, tokens, mine, before)
                if back > position or token == eos:
                    hidden = 1
                if hidden == 1:
                    token = eos
                mixed = mixed ^ (token * load_i64(multipliers + back * 8))
                for head in range((back - 1) * each, back * each):
                    row = _remainder(mixed, load_i64(sizes + head * 8)) + load_i64(offsets + head * 8)
                    store_i32(out + (t * n_head + head) * 4, row)
            if _is_last(t, rows, sequences, positions) == 1:  # what the next step sees before it
                for place in range(before):
                    kept = _token_before(t + 1, before - place, first, tokens, mine, before)
                    store_f32(mine + place * 4, f32(kept))

    return ngram_rows
