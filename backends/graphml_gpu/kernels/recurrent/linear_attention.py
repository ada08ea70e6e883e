"""Attention whose memory is a matrix a head: its rows stay in registers while the tokens of a step pass by.

A workgroup (rows, sequence); LANES neighbours share a row, and each has every LANES-th four of its elements.
Knows tokens by their sequence and position; one at position 0 begins with a memory of zeros, and one of a
sequence that the state does not have gets zeros.
"""

from __future__ import annotations

from graphml_gpu.kernels.attention.parts import slope
from graphml_gpu.language import (
    Array,
    Read,
    Update,
    Write,
    cluster_sum,
    dot,
    exp,
    f32,
    f32x4,
    function,
    group_id,
    group_size,
    i32,
    kernel,
    local_id,
    private_array,
    u32,
    unroll,
)


@function
def _row(LANES: int) -> u32:
    """The row of a sequence's memory [N * V] that this invocation works at."""
    return group_id(0) * (group_size() // LANES) + local_id(0) // LANES


@function
def _prepare(
    held: Array[f32x4], state: Read[f32x4], start: u32, position: i32, begun: u32, PARTS: int, LANES: int
) -> None:
    """Before a token: zeros at position 0, what the state holds before the first token of the step."""
    if position == 0:
        for j in unroll(PARTS):
            held[j] = f32x4(0.0)
    elif begun == 0:
        for j in unroll(PARTS):
            held[j] = state[start + j * LANES]


@function
def _keep(held: Array[f32x4], state: Write[f32x4], start: u32, begun: u32, PARTS: int, LANES: int) -> None:
    """Put the row back, if the step had tokens of the sequence."""
    if begun == 1:
        for j in unroll(PARTS):
            state[start + j * LANES] = held[j]


@function
def _fade(
    held: Array[f32x4], decay: Read[f32], at: u32, lane: u32, FOURS: int, PARTS: int, LANES: int, EACH: bool
) -> None:
    """Multiply by the decay of head `at`: one number, or if EACH one for each element of a key."""
    if EACH:
        for j in unroll(PARTS):
            four = (at * FOURS + lane + j * LANES) * 4
            held[j] = held[j] * f32x4(decay[four], decay[four + 1], decay[four + 2], decay[four + 3])
    else:
        factor = decay[at]
        for j in unroll(PARTS):
            held[j] = held[j] * factor


@function
def _times(held: Array[f32x4], x: Read[f32x4], start: u32, PARTS: int, LANES: int) -> f32:
    """This lane's share of the product of the row and a vector."""
    total = f32(0.0)
    for j in unroll(PARTS):
        total += dot(held[j], x[start + j * LANES])
    return total


@function
def _add(held: Array[f32x4], x: Read[f32x4], start: u32, factor: f32, PARTS: int, LANES: int) -> None:
    """Add a vector times a factor."""
    for j in unroll(PARTS):
        held[j] += x[start + j * LANES] * factor


@function
def _of_first(x: Read[f32], at: u32, lane: u32) -> f32:
    """x[at] in the first lane, 0 in the others: it alone may read where it writes later."""
    value = f32(0.0)
    if lane == 0:
        value = x[at]
    return value


@function
def _learn(
    held: Array[f32x4], k: Read[f32x4], v: Read[f32], beta: Read[f32], key: u32, value: u32, rate: u32,
    lane: u32, PARTS: int, LANES: int,
) -> None:  # fmt: skip
    """memory += beta * (v - memory k) k^T, of the key, value and beta at these places."""
    share = _of_first(v, value, lane) - _times(held, k, key, PARTS, LANES)
    wrong = cluster_sum(share, LANES) * beta[rate]
    _add(held, k, key, wrong, PARTS, LANES)


@kernel
def gated_delta_net(
    state: Update[f32x4], q: Read[f32x4], k: Read[f32x4], v: Read[f32], decay: Read[f32], beta: Read[f32],
    sequences: Read[i32], positions: Read[i32], out: Write[f32], tokens: u32, scale: f32,
    n_sequences: u32,
    *, N_HEAD: int, N_GROUP: int, V: int, FOURS: int, GROUPED: bool = False, EACH: bool = False,
    LANES: int = 1, GROUP: int = 64, UPDATES: int = 1,
) -> None:  # fmt: skip
    """memory = memory * decay; memory += beta * (v - memory k) k^T; out = scale * memory q, for each token.

    state [S, N_HEAD, V, 4 * FOURS]; q, k [tokens, N_GROUP, 4 * FOURS]; v, out [tokens, N_HEAD, V], out may be
    v; decay [tokens, N_HEAD, 1], or if EACH one for each element of a key; beta [tokens, N_HEAD]. GROUPED:
    neighbouring heads share a key, else those that are N_GROUP apart. UPDATES: of a token, one after the
    other, with k, v and beta [tokens, UPDATES, ...] each; out is not v then.
    """
    row, lane, sequence = _row(LANES), local_id(0) % LANES, group_id(1)
    head = row // V
    group = head // (N_HEAD // N_GROUP) if GROUPED else head % N_GROUP
    start = (sequence * (N_HEAD * V) + row) * FOURS + lane
    held = private_array(f32x4, FOURS // LANES)
    begun = u32(0)
    for t in range(0, tokens):
        if u32(sequences[t]) == sequence:
            _prepare(held, state, start, positions[t], begun, FOURS // LANES, LANES)
            begun = 1
            at, key = t * (N_HEAD * V) + row, (t * N_GROUP + group) * FOURS + lane
            _fade(held, decay, t * N_HEAD + head, lane, FOURS, FOURS // LANES, LANES, EACH)
            if UPDATES == 1:
                _learn(held, k, v, beta, key, at, t * N_HEAD + head, lane, FOURS // LANES, LANES)
            else:
                for i in range(t * UPDATES, (t + 1) * UPDATES):
                    keys, values = (i * N_GROUP + group) * FOURS + lane, i * (N_HEAD * V) + row
                    _learn(held, k, v, beta, keys, values, i * N_HEAD + head, lane, FOURS // LANES, LANES)
            y = cluster_sum(_times(held, q, key, FOURS // LANES, LANES), LANES)
            if lane == 0:
                out[at] = y * scale
        elif sequence == 0 and u32(sequences[t]) >= n_sequences and lane == 0:
            out[t * (N_HEAD * V) + row] = 0.0
    _keep(held, state, start, begun, FOURS // LANES, LANES)


@kernel
def linear_attention(
    state: Update[f32x4], q: Read[f32x4], k: Read[f32x4], v: Read[f32], decay: Read[f32],
    remove: Read[f32x4], replace: Read[f32x4], sequences: Read[i32], positions: Read[i32], out: Write[f32],
    tokens: u32, scale: f32, n_sequences: u32, fading: f32, bias_step: f32, lower: u32,
    *, N_HEAD: int, V: int, FOURS: int, DECAY: str = "", REPLACES: bool = False, BEFORE: bool = False,
    LANES: int = 1, GROUP: int = 64,
) -> None:  # fmt: skip
    """memory = memory * decay + v k^T; out = scale * memory q, of the memory before that if BEFORE.

    REPLACES: (memory remove) replace^T is added too, of the memory before the token. Shapes as in
    `gated_delta_net`, each head with keys of its own; remove and replace as k. DECAY: "head" [tokens,
    N_HEAD], "element" of a key [tokens, N_HEAD, 4 * FOURS], "" e to the minus `fading` times ALiBi's slope of
    the head.
    """
    row, lane, sequence = _row(LANES), local_id(0) % LANES, group_id(1)
    head = row // V
    factor = f32(1.0) if DECAY else exp(-fading * slope(head, bias_step, lower))
    start = (sequence * (N_HEAD * V) + row) * FOURS + lane
    held = private_array(f32x4, FOURS // LANES)
    begun = u32(0)
    for t in range(0, tokens):
        if u32(sequences[t]) == sequence:
            _prepare(held, state, start, positions[t], begun, FOURS // LANES, LANES)
            begun = 1
            at, key = t * (N_HEAD * V) + row, (t * N_HEAD + head) * FOURS + lane
            value = cluster_sum(_of_first(v, at, lane), LANES)
            share, removed = f32(0.0), f32(0.0)
            if BEFORE:
                share = _times(held, q, key, FOURS // LANES, LANES)
            if REPLACES:
                removed = cluster_sum(_times(held, remove, key, FOURS // LANES, LANES), LANES)
            if DECAY:
                _fade(held, decay, t * N_HEAD + head, lane, FOURS, FOURS // LANES, LANES, DECAY == "element")
            else:
                for j in unroll(FOURS // LANES):
                    held[j] = held[j] * factor
            if REPLACES:
                _add(held, replace, key, removed, FOURS // LANES, LANES)
            _add(held, k, key, value, FOURS // LANES, LANES)
            if not BEFORE:
                share = _times(held, q, key, FOURS // LANES, LANES)
            y = cluster_sum(share, LANES)
            if lane == 0:
                out[at] = y * scale
        elif sequence == 0 and u32(sequences[t]) >= n_sequences and lane == 0:
            out[t * (N_HEAD * V) + row] = 0.0
    _keep(held, state, start, begun, FOURS // LANES, LANES)
