"""Rows of states: those of cells and of sequences are told apart, and copies are what was there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import graphml
from graphml.compiler.row_copies import row_copies
from graphml.runtime.blocks.state_rows import copy_rows, read_rows, state_names, write_rows
from graphml.runtime.sessions.pinned import Room
from tests import golden


@pytest.mark.parametrize("backend", ["cpu", "reference", "opencl", "wgpu", "cpu,reference"])
def test_a_hybrid_models_rows_are_copied_within_its_state(backend: str, tmp_path: Path) -> None:
    """Jamba has attention and recurrent layers: rows of cells and of sequences."""
    path = golden.build(golden.read("jamba-dense"), tmp_path / "jamba.gguf")
    with graphml.load(path, backend=backend) as model:
        executor = model.executor
        room = Room(executor, executor.options, 64, 2)
        state, sequence = room.runner.state, room.pinned(0)
        names = state_names(executor.programs.state_leaves(executor.build(1, 1, 2), 2))
        assert all(name.endswith((".k", ".v")) for name in names.cells)
        assert names.sequences
        assert not set(names.cells) & set(names.sequences)
        room.step({sequence: np.array([3, 1, 4, 1, 5], np.int32)})
        for kinds in (names.cells, names.sequences):
            first, other = np.array([0]), np.array([1])
            before = read_rows(state, kinds, first)
            assert any(array.any() for array in before.values())
            copy_rows(state, kinds, first, other)
            for name, array in read_rows(state, kinds, other).items():
                np.testing.assert_array_equal(array, before[name])
            write_rows(state, first, {name: np.zeros_like(array) for name, array in before.items()})
            assert not any(array.any() for array in read_rows(state, kinds, first).values())


@pytest.mark.parametrize("backend", ["cpu", "reference", "opencl", "wgpu", "opencl,cpu"])
def test_copies_of_rows_outlive_what_happens_to_the_state(backend: str, tmp_path: Path) -> None:
    """Kept after steps and after writes through arrays; restored before steps and before reads."""
    path = golden.build(golden.read("jamba-dense"), tmp_path / "jamba.gguf")
    more = {"gpu_layers": 1} if "," in backend else {}
    with graphml.load(path, backend=backend, kv="f32", **more) as model:
        executor = model.executor
        room = Room(executor, executor.options, 64, 2)
        sequence = room.pinned(0)
        state, names = (
            room.runner.state,
            state_names(executor.programs.state_leaves(executor.build(1, 1, 2), 2)).sequences,
        )
        copies, first, other = row_copies(state, names, 3), np.array([0]), np.array([1])
        ids = np.array([3, 1, 4, 1, 5], np.int32)
        room.step({sequence: ids})
        copies.keep(0, 2)
        kept = read_rows(state, names, first)
        wanted = room.step({sequence: ids[:2]})
        changed = read_rows(state, names, first)
        assert any((changed[name] != kept[name]).any() for name in names)
        copies.restore(2, 0)
        copies.restore(2, 1)
        for row in (first, other):
            for name, array in read_rows(state, names, row).items():
                np.testing.assert_array_equal(array, kept[name])
        sequence.n_computed = len(ids)
        np.testing.assert_array_equal(room.step({sequence: ids[:2]}), wanted)
        write_rows(state, other, changed)
        copies.keep(1, 0)
        write_rows(state, other, kept)
        copies.restore(0, 1)
        for name, array in read_rows(state, names, other).items():
            np.testing.assert_array_equal(array, changed[name])
