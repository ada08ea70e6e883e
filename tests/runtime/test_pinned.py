"""Pinned sequences: each has cells of its own, and what it holds is one number."""

from __future__ import annotations

import pytest

from graphml.errors import ContextFullError, UsageError
from graphml.ir.cells import BLOCK_SIZE
from graphml.runtime.sessions.pinned import Pinned


def test_no_cell_belongs_to_two_sequences() -> None:
    sequences = [Pinned(slot, 70) for slot in range(3)]
    cells = [cell for sequence in sequences for cell in sequence.cells(0, 70).tolist()]
    assert len(set(cells)) == 210
    assert max(cells) < 3 * 3 * BLOCK_SIZE
    assert sequences[1].table(33).tolist() == [3, 4]


def test_a_full_context_is_an_error_and_changes_nothing() -> None:
    sequence = Pinned(0, 10)
    sequence.append(9)
    with pytest.raises(ContextFullError, match="holds 10 tokens and has 9; got 2 more"):
        sequence.append(2)
    assert sequence.n_computed == 9
    sequence.append(1)


@pytest.mark.parametrize("length", [-1, 6])
def test_rewinding_to_what_never_was_is_an_error(length: int) -> None:
    sequence = Pinned(0, 10)
    sequence.append(5)
    with pytest.raises(UsageError, match=f"0 to 5 tokens to keep; got {length}"):
        sequence.rewind(length)
