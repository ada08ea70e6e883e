"""Rings of blocks: what a token sees is still there when a step reads it, in as few blocks as that takes."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from graphml.ir.cell_groups import CellGroup, groups_among
from graphml.runtime.paged_cache import PagedCache

BLOCK = 4
GROUPS = st.builds(CellGroup, window=st.integers(1, 20)) | st.builds(CellGroup, chunk=st.integers(1, 20))


@given(GROUPS, st.integers(1, 10), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_what_a_token_sees_is_in_its_cells(group: CellGroup, longest: int, chance: random.Random) -> None:
    """However steps and rewinds follow each other, in two sequences; what is forgotten is written anew."""
    cache = PagedCache(200, BLOCK, 2, groups=[group], longest_step=longest)
    ring, cells, high = cache.of_group(group), dict[int, tuple[int, int]](), [0, 0]
    assert ring.n_cells <= 2 * (group.reach + longest + 2 * BLOCK)
    for _ in range(120):
        sequence = chance.randrange(2)
        length = cache.lengths[sequence]
        if length == 200 or chance.random() < 0.1:
            kept = chance.randint(max(0, length - 2 * longest), length)
            cache.rewind(sequence, kept)
            assert cache.lengths[sequence] == kept or (
                cache.lengths[sequence] == 0 and high[sequence] - kept > longest
            )
            continue
        positions, _ = cache.append(sequence, min(chance.randint(1, longest), 200 - length))
        high[sequence] = max(high[sequence] if length else 0, length + len(positions))
        for at in positions.tolist():
            cells[int(ring.table[sequence, at // BLOCK]) * BLOCK + at % BLOCK] = sequence, at
        for at in positions.tolist():
            for seen in range(group.first_seen(at), at + 1):
                cell = int(ring.table[sequence, seen // BLOCK]) * BLOCK + seen % BLOCK
                assert cell < ring.n_cells
                assert cells[cell] == (sequence, seen)


def test_a_short_context_needs_no_ring() -> None:
    group = CellGroup(window=64)
    cache = PagedCache(30, BLOCK, groups=[group], longest_step=16)
    cache.append(0, 16)
    cache.append(0, 14)
    assert cache.of_group(group).n_cells == 32
    cache.rewind(0, 1)
    assert cache.lengths == [1]


def test_a_cache_without_rings_keeps_all_of_a_group() -> None:
    group, cache = CellGroup(window=8), PagedCache(100, BLOCK)
    assert cache.of_group(group) is cache
    assert cache.sizes([group]) == {"S": 1, "C": 100, "C.window_8": 100}


def test_groups_are_told_by_the_names_of_inputs() -> None:
    window, chunk = CellGroup(window=1024), CellGroup(chunk=8192)
    names = ["tokens", "block_table", "source_table", *(one.input("block_table") for one in (window, chunk))]
    assert names[3:] == ["block_table.window_1024", "block_table.chunk_8192"]
    assert groups_among(names) == (window, chunk)
