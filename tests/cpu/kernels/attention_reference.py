"""What the attention kernels must compute, in float64 NumPy, one token and one head at a time."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

import graphml_quant
import numpy as np
from numpy.typing import NDArray

from graphml.ir.cache_types import cache_types

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]


@dataclass(frozen=True)
class Case:
    """One attention problem: where the tokens stand, the shapes, and the optional parts."""

    n_head: int
    n_head_kv: int
    d_k: int
    d_v: int
    positions: tuple[int, ...]  # of each token
    sequences: tuple[int, ...]  # of each token
    kv_dtype: str = "f16"  # of both, or KEYS/VALUES
    causal: bool = True
    window: int = 0
    softcap: float = 0.0
    max_bias: float = 0.0
    sinks: bool = False
    block_size: int = 32
    lengths: tuple[int, ...] = field(default=())  # of each sequence; () = up to its last token
    seed: int = 0

    @property
    def rows(self) -> int:
        return len(self.positions)

    @property
    def kv_dtypes(self) -> tuple[str, ...]:
        return tuple(kind.name for kind in cache_types(self.kv_dtype).most.dtypes)

    def sequence_lengths(self) -> tuple[int, ...]:
        if self.lengths:
            return self.lengths
        last = max(self.sequences)
        pairs = list(zip(self.positions, self.sequences, strict=True))
        return tuple(max((p + 1 for p, s in pairs if s == n), default=0) for n in range(last + 1))


@dataclass(frozen=True)
class Inputs:
    """The arrays of a case; `k` and `v` hold the cache's bits, `k_values` and `v_values` what they mean."""

    q: Floats  # [rows, n_head, d_k]
    k: NDArray[np.generic]  # [n_cells, n_head_kv, d_k]
    v: NDArray[np.generic]  # [n_cells, n_head_kv, d_v]
    k_values: NDArray[np.float64]
    v_values: NDArray[np.float64]
    positions: Ints
    sequences: Ints
    lengths: Ints
    block_table: Ints  # [n_sequences, table_stride]
    sinks: Floats | None
    scale: float


def bfloat16_bits(values: Floats) -> NDArray[np.uint16]:
    """Float32 -> bfloat16 bits, nearest even (NaN stays NaN)."""
    bits = values.view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(values), (bits >> 16) | 0x40, rounded).astype(np.uint16)


def store(values: Floats, dtype: str) -> NDArray[np.generic]:
    """`values` as a cache of `dtype` holds them; a block with a value that is not finite becomes NaN."""
    if dtype == "f16":
        return values.astype(np.float16)
    if dtype in ("f32", "bf16"):
        return bfloat16_bits(values) if dtype == "bf16" else values
    format = graphml_quant.by_name(dtype)
    blocks = values.reshape(-1, format.block_elements)
    bad = ~np.isfinite(blocks).all(axis=1)
    assert format.encode is not None
    encoded = format.encode(np.where(bad[:, None], np.float32(0), blocks))
    encoded[bad, :2] = np.array([np.nan], np.float16).view(np.uint8)
    return encoded.reshape(*values.shape[:-1], -1)


def recall(stored: NDArray[np.generic], dtype: str) -> NDArray[np.float64]:
    """What the bits of a cache of `dtype` mean."""
    if dtype == "bf16":
        return (stored.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    if dtype in ("f16", "f32"):
        return stored.astype(np.float64)
    format = graphml_quant.by_name(dtype)
    wide = format.decode(stored.reshape(-1, format.block_bytes))
    return wide.reshape(*stored.shape[:-1], -1).astype(np.float64)


def make_inputs(case: Case) -> Inputs:
    """Random inputs; blocks are shuffled, and cells that no token may see hold NaN."""
    random = np.random.default_rng(case.seed)
    lengths = case.sequence_lengths()
    blocks = [-(-length // case.block_size) for length in lengths]
    n_blocks = sum(blocks) + 2
    order = random.permutation(n_blocks)
    table = np.zeros((len(lengths), max(blocks) + 1), np.int32)
    used = np.zeros(n_blocks * case.block_size, bool)
    taken = 0
    for sequence, count in enumerate(blocks):
        table[sequence, :count] = order[taken : taken + count]
        taken += count
        for position in range(lengths[sequence]):
            block = table[sequence, position // case.block_size]
            used[block * case.block_size + position % case.block_size] = True

    (k, k_values), (v, v_values) = (
        _cache(used.tobytes(), case.n_head_kv, d, dtype, (case.seed, which))
        for which, (d, dtype) in enumerate(zip((case.d_k, case.d_v), case.kv_dtypes, strict=True))
    )
    return Inputs(
        q=random.standard_normal((case.rows, case.n_head, case.d_k)).astype(np.float32) * 2,
        k=k,
        v=v,
        k_values=k_values,
        v_values=v_values,
        positions=np.array(case.positions, np.int32),
        sequences=np.array(case.sequences, np.int32),
        lengths=np.array(lengths, np.int32),
        block_table=table,
        sinks=random.standard_normal(case.n_head).astype(np.float32) * 2 if case.sinks else None,
        scale=case.d_k**-0.5,
    )


@functools.lru_cache(maxsize=4)
def _cache(
    used: bytes, n_head_kv: int, d: int, dtype: str, seed: tuple[int, int]
) -> tuple[NDArray[np.generic], NDArray[np.float64]]:
    """Random cells, NaN where they are not used, and zeros behind the last, as a state has them.

    The same arrays for cases that differ in other things.
    """
    cells = np.frombuffer(used, bool)
    values = np.random.default_rng(seed).standard_normal((cells.size, n_head_kv, d), np.float32)
    values[~cells] = np.nan
    stored = store(np.concatenate([values, np.zeros_like(values[:1])]), dtype)[:-1]
    found = stored, recall(stored, dtype)
    for array in found:
        array.setflags(write=False)
    return found


def alibi_slope(head: int, n_head: int, max_bias: float) -> float:
    """ALiBi's slope of one head, as ggml takes it from `max_bias` (0 = no bias)."""
    if max_bias == 0:
        return 0.0
    power = 2 ** int(np.floor(np.log2(n_head)))
    if head < power:
        return float(2.0 ** (-max_bias / power * (head + 1)))
    return float(2.0 ** (-max_bias / 2 / power * (2 * (head - power) + 1)))


def reference(case: Case, inputs: Inputs) -> NDArray[np.float64]:
    """Attention of every token and head, [rows, n_head, d_v]; a token that sees nothing gives zeros."""
    out = np.zeros((case.rows, case.n_head, case.d_v))
    group = case.n_head // case.n_head_kv
    for token in range(case.rows):
        position, sequence = case.positions[token], case.sequences[token]
        end = position + 1 if case.causal else inputs.lengths[sequence]
        start = max(0, position - case.window + 1) if case.window else 0
        if case.window and not case.causal:
            half = case.window // 2
            start, end = max(0, position - half), min(end, position + half + 1)
        seen = np.arange(start, end)
        if seen.size == 0:
            continue
        blocks = inputs.block_table[sequence, seen // case.block_size].astype(np.int64)
        cells = blocks * case.block_size + seen % case.block_size
        for head in range(case.n_head):
            scores = (
                inputs.k_values[cells, head // group]
                @ inputs.q[token, head].astype(np.float64)
                * inputs.scale
            )
            if case.softcap:
                scores = case.softcap * np.tanh(scores / case.softcap)
            scores -= alibi_slope(head, case.n_head, case.max_bias) * np.abs(seen - position)
            sink = None if inputs.sinks is None else float(inputs.sinks[head])
            top = scores.max() if sink is None else max(scores.max(), sink)
            weights = np.exp(scores - top)
            total = weights.sum() + (0 if sink is None else np.exp(sink - top))
            out[token, head] = weights @ inputs.v_values[cells, head // group] / total
    return out
