"""Rows of states: those of cells and of sequences are told apart, and copies are what was there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import graphml
from graphml.runtime.slots import make_slots
from graphml.runtime.state_rows import copy_rows, read_rows, state_names, write_rows
from tests import golden


@pytest.mark.parametrize("backend", ["cpu", "reference", "opencl", "wgpu", "cpu,reference"])
def test_a_hybrid_models_rows_are_copied_within_its_state(backend: str, tmp_path: Path) -> None:
    """Jamba has attention and recurrent layers: rows of cells and of sequences."""
    path = golden.build(golden.read("jamba-dense"), tmp_path / "jamba.gguf")
    with graphml.load(path, backend=backend) as model:
        executor = model.executor
        (slot, _) = make_slots(executor, executor.options, 64, 2)
        names = state_names(executor.state_leaves(executor.build(1, 1, 2), 2))
        assert all(name.endswith((".k", ".v")) for name in names.cells)
        assert names.sequences
        assert not set(names.cells) & set(names.sequences)
        executor.step(np.array([3, 1, 4, 1, 5], np.int32), slot.cache, slot.state, False)
        for kinds in (names.cells, names.sequences):
            first, other = np.array([0]), np.array([1])
            before = read_rows(slot.state, kinds, first)
            assert any(array.any() for array in before.values())
            copy_rows(slot.state, kinds, first, other)
            for name, array in read_rows(slot.state, kinds, other).items():
                np.testing.assert_array_equal(array, before[name])
            write_rows(slot.state, first, {name: np.zeros_like(array) for name, array in before.items()})
            assert not any(array.any() for array in read_rows(slot.state, kinds, first).values())
