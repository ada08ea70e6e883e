"""Attention for decoding and for prefill against float64, and against itself: batches, threads, splits."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from graphml_cpu.layouts import (
    attention_partial_bytes,
    prefill_scratch_bytes,
    shared_notes_bytes,
    shared_scratch_bytes,
)

from graphml import settings
from tests.cpu.kernels.attention_reference import Case, Inputs, make_inputs, reference
from tests.cpu.kernels.running import THREADS, kernel, run
from tests.golden import nmse

# Relative to the largest value: float32 sums over some hundred positions, exp within 2 ulp.
TOLERANCE = 3e-6


def decode(
    case: Case, inputs: Inputs, nth: int = 1, alone: int = 0, out: np.ndarray | None = None,
    shared: bool = False, kept: list[np.ndarray] | None = None,
) -> np.ndarray:  # fmt: skip
    """shared: sequences that begin alike are looked for. kept: gets the notes and records."""
    decoded = alone or case.rows
    notes = shared_notes_bytes(decoded) if shared else 0
    records = (notes + attention_partial_bytes(decoded, case.n_head, case.d_v)) // 4
    partial = np.full(records + 16, np.nan if shared else 1e30, np.float32)
    partial[records:] = 1e30
    seen = {
        "positions": inputs.positions,
        "sequences": inputs.sequences,
        "lengths": 0 if case.causal else inputs.lengths,
        "window": case.window,
        "causal": int(case.causal),
        "n_head": case.n_head,
        "n_sequences": len(inputs.block_table),
        "room": inputs.block_table.shape[1] * case.block_size,
        "rows": case.rows,
        "alone": alone,
        "notes_bytes": notes,
        "partial": partial,
    }
    scored = {
        "q": inputs.q,
        "k_cache": inputs.k,
        "v_cache": inputs.v,
        "block_table": inputs.block_table,
        "n_head_kv": case.n_head_kv,
        "n_cells": len(inputs.k),
        "block_size": case.block_size,
        "table_stride": inputs.block_table.shape[1],
        "scale": inputs.scale,
        "softcap": case.softcap,
        "max_bias": case.max_bias,
        "q_stride": inputs.q.strides[0],
    }
    form = *case.kv_dtypes, case.d_k, case.d_v
    if shared:
        scratch = np.full(shared_scratch_bytes(case.d_k, case.d_v, decoded) // 4 + 16, np.nan, np.float32)
        scratch[-16:] = 77
        together = kernel("attention.shared_prefix", "make_attention_shared", *form)
        run(together, nth, **seen, **scored, scratch=scratch)
        assert (scratch[-16:] == 77).all()
    run(kernel("attention.decode", "make_attention_partial", *form), nth, **seen, **scored)
    assert (partial[records:] == 1e30).all()
    out = np.full((case.rows, case.n_head, case.d_v), np.nan, np.float32) if out is None else out
    second = kernel("attention.decode", "make_attention_combine", case.d_v)
    sinks = 0 if inputs.sinks is None else inputs.sinks
    run(second, nth, sinks=sinks, out=out, out_stride=out.strides[0], **seen)
    if kept is not None:
        kept.append(partial)
    return out


def prefill(case: Case, inputs: Inputs, nth: int = 1, alone: int = 0, pairs: bool = False) -> np.ndarray:
    one = prefill_scratch_bytes(case.d_k, case.d_v)
    scratch = np.full(nth * one // 4 + 16, np.nan, np.float32)
    scratch[-16:] = 77
    out = np.full((case.rows, case.n_head, case.d_v), np.nan, np.float32)
    made = kernel("attention.prefill", "make_attention_prefill", *case.kv_dtypes, case.d_k, case.d_v, pairs)
    run(made, nth, q=inputs.q, k_cache=inputs.k, v_cache=inputs.v, positions=inputs.positions,
        sequences=inputs.sequences, lengths=0 if case.causal else inputs.lengths, out=out, scratch=scratch,
        block_table=inputs.block_table, sinks=0 if inputs.sinks is None else inputs.sinks, scratch_bytes=one,
        n_head=case.n_head, n_head_kv=case.n_head_kv, block_size=case.block_size, window=case.window,
        table_stride=inputs.block_table.shape[1], causal=int(case.causal), scale=inputs.scale,
        softcap=case.softcap, max_bias=case.max_bias, q_stride=inputs.q.strides[0], out_stride=out.strides[0],
        n_sequences=len(inputs.block_table), room=inputs.block_table.shape[1] * case.block_size,
        n_cells=len(inputs.k), alone=alone, rows=case.rows)  # fmt: skip
    assert (scratch[-16:] == 77).all()
    return out


BASE = Case(n_head=6, n_head_kv=2, d_k=64, d_v=64, positions=(40, 130, 131, 7), sequences=(0, 2, 2, 1))
F32 = dataclasses.replace(BASE, kv_dtype="f32", d_k=6, d_v=10)
BF16 = dataclasses.replace(BASE, kv_dtype="bf16", d_k=192, d_v=128)
Q8_0 = dataclasses.replace(BASE, kv_dtype="q8_0", d_k=32, d_v=96)
Q4_0 = dataclasses.replace(BASE, kv_dtype="q4_0", d_k=64, d_v=32)
CASES = {
    "plain": BASE,
    "one position": dataclasses.replace(BASE, positions=(0,), sequences=(0,)),
    "one head per group": dataclasses.replace(BASE, n_head=2),
    "four heads per group": dataclasses.replace(BASE, n_head=4, n_head_kv=1),
    "eight heads per group": dataclasses.replace(BASE, n_head=16),
    "seven heads, one group": dataclasses.replace(BASE, n_head=7, n_head_kv=1),
    # One form of the kernels for each of these: narrow vectors, several register tiles, blocks.
    "f32, d 6 and 10": F32,
    "bf16, d 192 and 128": BF16,
    "q8_0, d 32 and 96": Q8_0,
    "q4_0, d 64 and 32": Q4_0,
    # Other types with the kernels of tests/runtime/test_cache_types.py and of the conformance suite.
    **{
        f"{pair}, d 32": dataclasses.replace(BASE, kv_dtype=pair, d_k=32, d_v=32)
        for pair in ("q5_0", "q5_1/q4_1", "q4_1/iq4_nl", "iq4_nl/f32", "q8_0/q5_1")
    },
    "window": dataclasses.replace(BASE, window=33),
    "window of one": dataclasses.replace(BASE, window=1),
    "softcap": dataclasses.replace(BASE, softcap=5.0),
    "alibi": dataclasses.replace(BASE, max_bias=8.0),
    "alibi, heads no power of two": dataclasses.replace(BASE, n_head=12, n_head_kv=4, max_bias=4.0),
    "sinks": dataclasses.replace(BASE, sinks=True),
    "all of it": dataclasses.replace(BASE, window=50, softcap=20.0, max_bias=8.0, sinks=True),
    "blocks of 1": dataclasses.replace(BASE, block_size=1),
    "blocks of 16": dataclasses.replace(BASE, block_size=16),
    "blocks of 256": dataclasses.replace(BASE, block_size=256),
    "not causal": dataclasses.replace(BASE, causal=False, lengths=(41, 9, 140)),
    "not causal, alibi": dataclasses.replace(BASE, causal=False, lengths=(60, 9, 140), max_bias=8.0),
    "not causal, window": dataclasses.replace(BASE, causal=False, lengths=(60, 9, 140), window=12),
    "nothing to see": dataclasses.replace(BASE, causal=False, lengths=(0, 9, 140), sinks=True),
    "long": dataclasses.replace(BASE, positions=(1999, 1200), sequences=(0, 1)),
}

# At other levels fewer forms are compiled: how each stored dtype is read is tested by itself.
FORMS = ("f32", "f16", "q8_0") if settings.cpu_level() else {case.kv_dtype for case in CASES.values()}
CASES = {name: case for name, case in CASES.items() if case.kv_dtype in FORMS}


def close(got: np.ndarray, wanted: np.ndarray) -> None:
    np.testing.assert_allclose(got, wanted, rtol=0, atol=TOLERANCE * max(1.0, np.abs(wanted).max()))


@pytest.mark.parametrize("name", CASES)
def test_decode_is_float64s_within_rounding(name: str) -> None:
    inputs = make_inputs(CASES[name])
    close(decode(CASES[name], inputs), reference(CASES[name], inputs))


@pytest.mark.parametrize("name", ["plain", "long", "window", "all of it"])
def test_decode_is_the_same_on_any_number_of_threads(name: str) -> None:
    inputs = make_inputs(CASES[name])
    one = decode(CASES[name], inputs)
    for nth in THREADS[1:]:
        np.testing.assert_array_equal(decode(CASES[name], inputs, nth), one)
    np.testing.assert_array_equal(decode(CASES[name], inputs, 16), one)


def test_decode_of_a_batch_is_each_token_by_itself() -> None:
    case = CASES["all of it"]
    inputs = make_inputs(case)
    together = decode(case, inputs)
    for row in range(case.rows):
        alone = dataclasses.replace(case, positions=(case.positions[row],), sequences=(case.sequences[row],))
        at = dataclasses.replace(
            inputs,
            q=inputs.q[row : row + 1],
            positions=inputs.positions[row : row + 1],
            sequences=inputs.sequences[row : row + 1],
        )
        np.testing.assert_array_equal(decode(alone, at), together[row : row + 1])


def runs(*lengths: int, start: int = 0) -> dict[str, tuple[int, ...]]:
    """Positions and sequences of one run of tokens per sequence."""
    return {
        "positions": tuple(start + i for length in lengths for i in range(length)),
        "sequences": tuple(n for n, length in enumerate(lengths) for _ in range(length)),
    }


PREFILL_CASES = {
    **CASES,
    "a prompt": dataclasses.replace(BASE, **runs(150)),
    "a prompt after another": dataclasses.replace(BASE, **runs(70, start=75)),
    "prompts of several sequences": dataclasses.replace(BASE, **runs(33, 1, 70, 5)),
    "a prompt, window": dataclasses.replace(BASE, window=20, **runs(150)),
    "a prompt, all of it": dataclasses.replace(
        BASE, window=50, softcap=20.0, max_bias=8.0, sinks=True, **runs(150)
    ),
    "a prompt, seven heads": dataclasses.replace(BASE, n_head=7, n_head_kv=1, **runs(70)),
    "a prompt, more heads than lanes": dataclasses.replace(BASE, n_head=71, n_head_kv=1, **runs(20)),
    "a prompt, not causal": dataclasses.replace(BASE, causal=False, **runs(70, 20)),
    "a prompt, not causal, window": dataclasses.replace(BASE, causal=False, window=21, **runs(70, 20)),
    "a prompt, one head per group, bf16": dataclasses.replace(BF16, n_head=2, **runs(130)),
    "a prompt, f32, d 6 and 10": dataclasses.replace(F32, **runs(70)),
    "a prompt, q8_0, all of it": dataclasses.replace(
        Q8_0, window=50, softcap=20.0, max_bias=8.0, sinks=True, **runs(70)
    ),
    "a prompt, q4_0": dataclasses.replace(Q4_0, **runs(70)),
    "a prompt backwards": dataclasses.replace(BASE, positions=tuple(range(99, -1, -1)), sequences=(0,) * 100),
}


PREFILL_CASES = {name: case for name, case in PREFILL_CASES.items() if case.kv_dtype in FORMS}


@pytest.mark.parametrize("name", PREFILL_CASES)
def test_prefill_is_float64s_within_rounding(name: str) -> None:
    inputs = make_inputs(PREFILL_CASES[name])
    close(prefill(PREFILL_CASES[name], inputs), reference(PREFILL_CASES[name], inputs))


@pytest.mark.parametrize("name", ["prompts of several sequences", "a prompt, all of it"])
def test_prefill_is_the_same_on_any_number_of_threads(name: str) -> None:
    inputs = make_inputs(PREFILL_CASES[name])
    one = prefill(PREFILL_CASES[name], inputs)
    for nth in (*THREADS[1:], 16):
        np.testing.assert_array_equal(prefill(PREFILL_CASES[name], inputs, nth), one)


IN_PAIRS = (
    "plain", "one position", "nothing to see", "f32, d 6 and 10", "long", "a prompt", "a prompt, window",
    "a prompt, all of it", "a prompt, seven heads", "a prompt, more heads than lanes",
    "a prompt, q8_0, all of it", "a prompt, not causal, window", "prompts of several sequences",
)  # fmt: skip


@pytest.mark.parametrize("name", [name for name in IN_PAIRS if name in PREFILL_CASES])
def test_prefill_of_bfloat16_is_float64s_within_its_rounding(name: str) -> None:
    case = PREFILL_CASES[name]
    inputs = make_inputs(case)
    one = prefill(case, inputs, pairs=True)
    assert nmse(one, reference(case, inputs)) < 1e-4
    for nth in (*THREADS[1:], 16):
        np.testing.assert_array_equal(prefill(case, inputs, nth, pairs=True), one)


@pytest.mark.parametrize("pairs", [False, True])
def test_prefill_reads_nothing_before_the_window(pairs: bool) -> None:
    """Blocks behind it are another text's by now, which may hold anything."""
    case = dataclasses.replace(BASE, window=20, block_size=8, **runs(40, start=75))
    inputs = make_inputs(case)
    wanted = prefill(case, inputs, pairs=pairs)
    gone = inputs.block_table[0, : (75 - 19) // 8]
    cells = (gone[:, None] * 8 + np.arange(8)).ravel()
    caches = [np.concatenate([cache, np.zeros_like(cache[:1])]) for cache in (inputs.k, inputs.v)]
    for cache in caches:
        cache[cells] = np.nan
    stale = dataclasses.replace(inputs, k=caches[0][:-1], v=caches[1][:-1])
    np.testing.assert_array_equal(prefill(case, stale, pairs=pairs), wanted)


STEPS = (
    "prompts of several sequences", "a prompt, all of it", "a prompt, window", "a prompt, q8_0, all of it",
    "a prompt, q4_0",
)  # fmt: skip


@pytest.mark.parametrize("name", [name for name in STEPS if name in PREFILL_CASES])
def test_prefill_of_a_batch_is_decoding_step_by_step(name: str) -> None:
    inputs = make_inputs(PREFILL_CASES[name])
    steps = decode(PREFILL_CASES[name], inputs)
    close(prefill(PREFILL_CASES[name], inputs), steps)


MIXED = dataclasses.replace(
    BASE, positions=(300, 128, 129, 130, 7, 9, 10, 300, 200), sequences=(0, 2, 2, 2, 1, 3, 3, 0, 4)
)


@pytest.mark.parametrize("nth", [*THREADS, 16])
@pytest.mark.parametrize("name", ["plain", "window", "all of it", "not causal"])
def test_rows_that_stand_alone_beside_chunks_have_the_bits_of_decoding(name: str, nth: int) -> None:
    case = dataclasses.replace(CASES[name], positions=MIXED.positions, sequences=MIXED.sequences)
    if not case.causal:
        case = dataclasses.replace(case, lengths=(301, 9, 140, 11, 0))
    inputs, single = make_inputs(case), [0, 4, 7, 8]
    decoded, tiled = decode(case, inputs), prefill(case, inputs)
    for alone in (5, 4, 2):
        out = decode(case, inputs, nth, alone, prefill(case, inputs, nth, alone))
        wanted = tiled.copy()
        wanted[single[:alone]] = decoded[single[:alone]]
        np.testing.assert_array_equal(out, wanted)


def test_decoding_touches_only_rows_that_stand_alone() -> None:
    inputs, untouched = make_inputs(MIXED), np.full((MIXED.rows, MIXED.n_head, MIXED.d_v), 7.0, np.float32)
    out = decode(MIXED, inputs, 2, 5, untouched.copy())
    assert (out[[1, 2, 3, 5, 6]] == 7.0).all()
    assert (out[[0, 4, 7, 8]] != 7.0).any(axis=(1, 2)).all()
    left = prefill(MIXED, inputs, 2, 5)
    assert np.isnan(left[[0, 4, 7, 8]]).all()
    assert not np.isnan(left[[1, 2, 3, 5, 6]]).any()
