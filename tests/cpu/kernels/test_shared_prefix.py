"""Decoding of sequences that begin alike: what they share is computed together, for all of its forms."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest
from graphml_cpu.layouts import SHARED_NOTE_BYTES

from graphml import settings
from tests.cpu.kernels.attention_reference import Case, Inputs, make_inputs, reference
from tests.cpu.kernels.running import THREADS
from tests.cpu.kernels.test_attention import BASE, close, decode


def begin_alike(case: Case, groups: Sequence[tuple[tuple[int, ...], int]]) -> Inputs:
    """Inputs in which the sequences of each group have the first so many positions in common."""
    inputs = make_inputs(case)
    for sequences, positions in groups:
        for sequence in sequences[1:]:
            blocks = positions // case.block_size
            inputs.block_table[sequence, :blocks] = inputs.block_table[sequences[0], :blocks]
    return inputs


def each_own(*positions: int) -> dict[str, tuple[int, ...]]:
    """One token of each sequence, at these positions."""
    return {"positions": positions, "sequences": tuple(range(len(positions)))}


LONG = dataclasses.replace(BASE, **each_own(200, 530, 200, 257, 1500, 199, 320, 511))
ALL_OF_IT = dataclasses.replace(LONG, softcap=20.0, max_bias=8.0, sinks=True)
ONE, TWO = (((0, 1, 2, 3, 4, 5, 6, 7), 192),), (((0, 2, 5, 7), 192), ((1, 3, 4, 6), 256))
# What the tokens are, and which of them share how many positions.
SHARED = {
    "one beginning": (LONG, ONE),
    "two beginnings, in turns": (LONG, TWO),
    "some have none": (LONG, (((1, 3, 6, 7), 256),)),
    "three are not a group": (LONG, (((1, 3, 7), 256),)),
    "less than a chunk": (LONG, (((0, 1, 2, 3, 5, 6, 7), 32),)),
    "all of it": (ALL_OF_IT, TWO),
    "a window": (dataclasses.replace(LONG, window=150), ONE),
    "a wide window": (dataclasses.replace(LONG, window=300), ONE),
    "blocks of 1": (dataclasses.replace(LONG, block_size=1), TWO),
    "blocks of 256": (dataclasses.replace(LONG, block_size=256), (((1, 3, 4, 6, 7), 256),)),
    "eight heads per group": (dataclasses.replace(LONG, n_head=16), ONE),
    "one head per group": (dataclasses.replace(LONG, n_head=2), TWO),
    "one head for all": (dataclasses.replace(LONG, n_head=7, n_head_kv=1), ONE),
    "not causal": (
        dataclasses.replace(LONG, causal=False, lengths=(201, 531, 260, 258, 1501, 200, 321, 512)), ONE
    ),
    "many tokens": (dataclasses.replace(BASE, **each_own(*range(700, 740))), ((tuple(range(40)), 640),)),
    "f32, d 6 and 10": (dataclasses.replace(LONG, kv_dtype="f32", d_k=6, d_v=10), TWO),
    "q8_0, d 32 and 96": (dataclasses.replace(LONG, kv_dtype="q8_0", d_k=32, d_v=96), TWO),
}  # fmt: skip
# At other levels fewer forms are compiled: how each stored dtype is read is tested by itself.
if settings.cpu_level():
    SHARED = {name: made for name, made in SHARED.items() if made[0].kv_dtype == "f16"}


@pytest.mark.parametrize("name", SHARED)
def test_it_is_float64s_within_rounding(name: str) -> None:
    case, groups = SHARED[name]
    inputs = begin_alike(case, groups)
    close(decode(case, inputs, shared=True), reference(case, inputs))


@pytest.mark.parametrize("name", ["all of it", "many tokens", "some have none"])
def test_it_is_the_same_on_any_number_of_threads(name: str) -> None:
    case, groups = SHARED[name]
    inputs = begin_alike(case, groups)
    one = decode(case, inputs, shared=True)
    for nth in (*THREADS[1:], 16):
        np.testing.assert_array_equal(decode(case, inputs, nth, shared=True), one)


@pytest.mark.parametrize("name", ["three are not a group", "less than a chunk", "a window"])
def test_without_a_group_it_has_the_bits_of_decoding(name: str) -> None:
    case, groups = SHARED[name]
    inputs = begin_alike(case, groups)
    np.testing.assert_array_equal(decode(case, inputs, shared=True), decode(case, inputs))


def test_who_has_no_group_has_the_bits_of_decoding() -> None:
    case, groups = SHARED["some have none"]
    inputs = begin_alike(case, groups)
    together, single = decode(case, inputs, shared=True), decode(case, inputs)
    np.testing.assert_array_equal(together[[0, 2, 4, 5]], single[[0, 2, 4, 5]])
    assert (together[[1, 3, 6, 7]] != single[[1, 3, 6, 7]]).any(axis=(1, 2)).all()  # computed together


@pytest.mark.parametrize("nth", THREADS)
def test_rows_that_stand_alone_beside_chunks_share_too(nth: int) -> None:
    case = dataclasses.replace(
        BASE, positions=(300, 128, 129, 130, 307, 9, 10, 310, 200), sequences=(0, 2, 2, 2, 1, 3, 3, 4, 5)
    )
    inputs, single = begin_alike(case, (((0, 1, 4, 2, 5), 128),)), [0, 4, 7, 8]
    out = np.full((case.rows, case.n_head, case.d_v), 7.0, np.float32)
    decode(case, inputs, nth, 6, out, shared=True)
    close(out[single], reference(case, inputs)[single])
    assert (out[[1, 2, 3, 5, 6]] == 7.0).all()
    only = dataclasses.replace(case, positions=(300, 307, 310, 200), sequences=(0, 1, 4, 5))
    rows = dataclasses.replace(
        inputs,
        q=inputs.q[single],
        positions=np.array(only.positions, np.int32),
        sequences=np.array(only.sequences, np.int32),
    )
    np.testing.assert_array_equal(out[single], decode(only, rows, shared=True))


def notes_of(case: Case, inputs: Inputs) -> list[tuple[int, int]]:
    """The shared positions and the segments of each token."""
    kept: list[np.ndarray] = []
    decode(case, inputs, shared=True, kept=kept)
    notes = kept[0].view(np.int32)[: case.rows * SHARED_NOTE_BYTES // 4]
    return [(int(a), int(b)) for a, b in notes.reshape(-1, 2)]


def test_groups_share_what_all_of_their_tokens_have() -> None:
    assert notes_of(LONG, begin_alike(LONG, ONE)) == [(192, 1)] * 8
    assert notes_of(LONG, begin_alike(LONG, TWO)) == [
        (positions, 1) for positions in (192, 256, 192, 256, 256, 192, 256, 192)
    ]


def test_tokens_of_one_sequence_have_the_bits_of_decoding() -> None:
    case = dataclasses.replace(BASE, positions=(300, 301, 302, 303, 290), sequences=(0, 0, 0, 0, 1))
    inputs = begin_alike(case, (((0, 1), 256),))
    assert notes_of(case, inputs) == [(0, 0)] * 5
    np.testing.assert_array_equal(decode(case, inputs, shared=True), decode(case, inputs))
