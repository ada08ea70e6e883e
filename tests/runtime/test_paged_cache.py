"""The paged cache: cells are given to one sequence at a time and come back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphml.errors import ContextFullError, UsageError
from graphml.runtime.paged_cache import PagedCache


def test_positions_go_on_and_cells_follow_the_table() -> None:
    cache = PagedCache(n_ctx=10, block_size=4)
    positions, cells = cache.append(0, 6)
    assert list(positions) == [0, 1, 2, 3, 4, 5]
    assert positions.dtype == cells.dtype == np.int32
    assert list(cells) == [cache.table[0, p // 4] * 4 + p % 4 for p in range(6)]
    assert list(cache.append(0, 2)[0]) == [6, 7]
    assert cache.n_cells == 12
    assert cache.table.shape == (1, 3)


def test_a_full_context_is_an_error_and_changes_nothing() -> None:
    cache = PagedCache(n_ctx=10, block_size=4)
    cache.append(0, 9)
    with pytest.raises(ContextFullError, match="holds 10 tokens and has 9; got 2 more"):
        cache.append(0, 2)
    assert cache.lengths == [9]
    cache.append(0, 1)


@pytest.mark.parametrize("length", [-1, 6])
def test_rewinding_to_what_never_was_is_an_error(length: int) -> None:
    cache = PagedCache(n_ctx=10, block_size=4)
    cache.append(0, 5)
    with pytest.raises(UsageError, match=f"0 to 5 tokens to keep; got {length}"):
        cache.rewind(0, length)


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans(), st.integers(0, 30)), max_size=40))
def test_no_cell_belongs_to_two_tokens(steps: list[tuple[int, bool, int]]) -> None:
    cache = PagedCache(n_ctx=24, block_size=4, n_sequences=3)
    held: list[list[int]] = [[], [], []]
    for sequence, rewind, count in steps:
        if rewind:
            length = min(count, len(held[sequence]))
            cache.rewind(sequence, length)
            del held[sequence][length:]
        elif len(held[sequence]) + count <= 24:
            positions, cells = cache.append(sequence, count)
            assert list(positions) == list(range(len(held[sequence]), len(held[sequence]) + count))
            held[sequence].extend(cells)
        assert cache.lengths == [len(cells) for cells in held]
        for one, cells in enumerate(held):
            looked_up = [cache.table[one, p // 4] * 4 + p % 4 for p in range(len(cells))]
            assert looked_up == cells
        every = [cell for cells in held for cell in cells]
        assert len(set(every)) == len(every)
        assert all(0 <= cell < cache.n_cells for cell in every)
