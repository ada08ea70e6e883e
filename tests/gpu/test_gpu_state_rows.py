"""Rows of a state on a device: only theirs are transferred, also where they are no whole words."""

from __future__ import annotations

import numpy as np
import pytest
from graphml_gpu.memory import Memory
from graphml_gpu.plain_driver import PlainDriver
from graphml_gpu.state import GpuState

from graphml.ir.dtype import dtype
from graphml.ir.graph import Graph
from graphml.ir.language import Builder
from graphml.runtime.blocks.state_rows import copy_rows, read_rows, runs_of, write_rows


class Counted(PlainDriver):
    """Counts the bytes that are read."""

    n_read = 0

    def read(self, ranges):  # type: ignore[no-untyped-def]
        self.n_read += sum(n_bytes for _, _, n_bytes in ranges)
        return super().read(ranges)


def test_rows_become_runs() -> None:
    assert runs_of(np.array([4, 5, 6, 9, 8, 3, 4])) == [(4, 3), (9, 1), (8, 1), (3, 2)]
    assert runs_of(np.array([], np.int32)) == []


@pytest.mark.parametrize("kind", ["f32", "f16", "q8_0", "bf16"])
def test_rows_are_read_written_and_copied_alone(kind: str) -> None:
    g = Builder(1, 1, 1, 64, 32)
    elements = 96 if kind == "q8_0" else 7  # rows of 102, 28 and 14 bytes
    leaf = g.state("k", dtype(kind), (64, elements))
    driver = Counted()
    state = GpuState(Memory(driver), Graph((leaf,), {}), {"C": 64})
    generator = np.random.default_rng(1)
    whole = state.array("k")
    whole.view(np.uint8)[...] = generator.integers(0, 100, whole.view(np.uint8).shape, np.uint8)
    expected = whole.copy()
    rows = np.array([3, 4, 5, 17, 9, 63])
    driver.n_read = 0
    np.testing.assert_array_equal(read_rows(state, ["k"], rows)["k"], expected[rows])
    assert driver.n_read <= 6 * expected[0].nbytes + 4 * 2 * 4
    given = generator.integers(0, 100, expected[rows].view(np.uint8).shape, np.uint8).view(expected.dtype)
    write_rows(state, rows, {"k": given})
    expected[rows] = given
    np.testing.assert_array_equal(state.array("k"), expected)
    copy_rows(state, ["k"], np.array([3, 4, 20, 63]), np.array([31, 32, 0, 1]))
    expected[[31, 32, 0, 1]] = expected[[3, 4, 20, 63]]
    np.testing.assert_array_equal(state.array("k"), expected)
    assert read_rows(state, ["k"], np.array([], np.int32))["k"].shape == (0, *expected.shape[1:])
