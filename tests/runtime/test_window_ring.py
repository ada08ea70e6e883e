"""Rings of blocks: what a token sees is still there when a step reads it, in as few blocks as that takes."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from graphml.ir.cell_groups import CellGroup, groups_among
from graphml.ir.cells import BLOCK_SIZE
from graphml.runtime.blocks.window_ring import WindowRing, pinned_sizes
from graphml.runtime.sessions.pinned import Pinned

GROUPS = st.builds(CellGroup, window=st.integers(1, 160)) | st.builds(CellGroup, chunk=st.integers(1, 160))
N_CTX = 1600


@given(GROUPS, st.integers(1, 80), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_what_a_token_sees_is_in_its_cells(group: CellGroup, longest: int, chance: random.Random) -> None:
    """However steps and rewinds follow each other, in two sequences; what is forgotten is written anew."""
    ring, cells, high = WindowRing(group, N_CTX, 2, longest), dict[int, tuple[int, int]](), [0, 0]
    sequences = [Pinned(slot, N_CTX, [ring]) for slot in range(2)]
    assert ring.n_blocks * BLOCK_SIZE <= 2 * (group.reach + longest + 2 * BLOCK_SIZE)
    for _ in range(60):
        slot = chance.randrange(2)
        sequence, length = sequences[slot], sequences[slot].n_computed
        if length == N_CTX or chance.random() < 0.1:
            kept = chance.randint(max(0, length - 2 * longest), length)
            sequence.rewind(kept)
            assert sequence.n_computed == kept or (sequence.n_computed == 0 and high[slot] - kept > longest)
            continue
        sequence.append(min(chance.randint(1, longest), N_CTX - length))
        end = sequence.n_computed
        high[slot] = max(high[slot] if length else 0, end)
        in_cells = sequence.cells(0, end, group).tolist()
        for at in range(length, end):
            cells[in_cells[at]] = slot, at
        for at in range(length, end):
            for seen in range(group.first_seen(at), at + 1):
                assert in_cells[seen] < ring.n_blocks * BLOCK_SIZE
                assert cells[in_cells[seen]] == (slot, seen)


def test_a_short_context_needs_no_ring() -> None:
    group = CellGroup(window=64)
    ring = WindowRing(group, 30, 1, 16)
    sequence = Pinned(0, 30, [ring])
    sequence.append(16)
    sequence.append(14)
    assert ring.n_blocks == 1
    sequence.rewind(1)
    assert sequence.n_computed == 1


def test_sizes_of_states_have_those_of_rings() -> None:
    group = CellGroup(window=8)
    assert pinned_sizes([], 100, 16) == {"S": 1, "C": 128}
    assert pinned_sizes([group], 1000, 16, 3) == {"S": 3, "C": 3072, "C.window_8": 3 * 64}


def test_groups_are_told_by_the_names_of_inputs() -> None:
    window, chunk = CellGroup(window=1024), CellGroup(chunk=8192)
    names = ["tokens", "block_table", "source_table", *(one.input("block_table") for one in (window, chunk))]
    assert names[3:] == ["block_table.window_1024", "block_table.chunk_8192"]
    assert groups_among(names) == (window, chunk)
