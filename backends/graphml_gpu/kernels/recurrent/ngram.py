"""Rows of a table by hashes of the last few tokens, in 64 bits made of two words; such tokens are the state.

Knows ids; nothing of the table.
"""

from __future__ import annotations

from graphml_gpu.kernels.grid import element_number
from graphml_gpu.language import Read, Update, Write, f32, function, i32, kernel, select, table, u32


@function
def product(a: u32, low: u32, high: u32) -> tuple[u32, u32]:
    """The lower 64 bits of a times a number of two words, low word first."""
    a_low, a_high = a & 0xFFFF, a >> 16
    b_low, b_high = low & 0xFFFF, low >> 16
    first, second = a_high * b_low, a_low * b_high
    lowest = a_low * b_low
    middle = (lowest >> 16) + (first & 0xFFFF) + (second & 0xFFFF)
    carried = a_high * b_high + (first >> 16) + (second >> 16) + (middle >> 16)
    return (lowest & 0xFFFF) | (middle << 16), carried + a * high


@function
def remainder(low: u32, high: u32, size: u32) -> u32:
    """What two words leave when divided by a size below 2^31."""
    left = high % size
    for bit in range(32):
        left = left * 2 + ((low >> (31 - bit)) & 1)
        left = select(left >= size, left - size, left)
    return left


@function
def token_before(
    state: Read[f32], tokens: Read[i32], sequences: Read[i32], positions: Read[i32], t: u32, back: u32,
    mine: u32, KEPT: int,
) -> u32:  # fmt: skip
    """The token `back` places before token t of its sequence: of the step, or of the state's at `mine`."""
    inside, going = u32(0), u32(1)
    for step in range(back):
        if going == 1 and t > step and positions[t - step] != 0 and sequences[t - step - 1] == sequences[t]:
            inside += 1
        else:
            going = 0
    return u32(tokens[t - back]) if inside == back else u32(state[mine + KEPT + inside - back])


@kernel
def ngram_rows(
    state: Read[f32], tokens: Read[i32], sequences: Read[i32], positions: Read[i32], out: Write[i32], n: u32,
    n_sequences: u32,
    *, LOWS: tuple[int, ...], HIGHS: tuple[int, ...], SIZES: tuple[int, ...], OFFSETS: tuple[int, ...],
    EOS: int, GROUP: int = 64,
) -> None:  # fmt: skip
    """out[t] = rows of a table for each token, as op `ngram_rows` means them; an invocation a token.

    state [n_sequences, KEPT], KEPT one less than multipliers, the oldest token first; zeros for a token of a
    sequence outside; tokens, sequences, positions [n];
    out [n, number of SIZES]. LOWS, HIGHS: words of the multipliers.
    """
    t = element_number()
    if t < n and u32(sequences[t]) >= n_sequences:
        for head in range(len(SIZES)):
            out[t * len(SIZES) + head] = 0
    elif t < n:
        kept = len(LOWS) - 1
        each = len(SIZES) // kept
        lows = table(u32, LOWS)
        highs = table(u32, HIGHS)
        sizes = table(u32, SIZES)
        offsets = table(u32, OFFSETS)
        mine, position = u32(sequences[t]) * kept, u32(positions[t])
        low, high = product(u32(tokens[t]), lows[0], highs[0])
        hidden = u32(0)
        for back in range(1, kept + 1):
            token = token_before(state, tokens, sequences, positions, t, back, mine, kept)
            if back > position or token == EOS:
                hidden = 1
            other_low, other_high = product(select(hidden == 1, EOS, token), lows[back], highs[back])
            low = low ^ other_low
            high = high ^ other_high
            for head in range((back - 1) * each, back * each):
                out[t * len(SIZES) + head] = i32(remainder(low, high, sizes[head]) + offsets[head])


@kernel
def keep_tokens(
    state: Update[f32], tokens: Read[i32], sequences: Read[i32], positions: Read[i32], n: u32,
    n_sequences: u32, *, KEPT: int, GROUP: int = 64,
) -> None:  # fmt: skip
    """The state after the step: the last KEPT tokens of each sequence, the oldest first.

    state [n_sequences, KEPT]; tokens, sequences, positions [n]. An invocation a sequence.
    """
    sequence = element_number()
    if sequence < n_sequences:
        end = u32(0)
        for t in range(n):
            if u32(sequences[t]) == sequence:
                end = t + 1
        if end > 0:
            mine = sequence * KEPT
            for place in range(KEPT):  # what a place takes stands behind it, if in the state
                back = KEPT - 1 - place
                token = token_before(state, tokens, sequences, positions, end - 1, back, mine, KEPT)
                state[mine + place] = f32(token)
