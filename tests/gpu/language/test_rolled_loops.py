"""Which loops lavapipe is kept from unrolling. All tests of wgpu on lavapipe run what is made of them."""

from __future__ import annotations

import numpy as np
from graphml_gpu.language import Read, Write, f32, kernel, local_id, private_array


@kernel
def sums(x: Read[f32], out: Write[f32], *, TURNS: int, GROUP: int = 4) -> None:
    total = f32(0.0)
    for i in range(TURNS):
        total += x[local_id(0) + i * 4]
    out[local_id(0)] = total


@kernel
def keeps(x: Read[f32], out: Write[f32], *, GROUP: int = 4) -> None:
    kept = private_array(f32, 8)
    for i in range(8):
        kept[i] = x[local_id(0) + i * 4]
    total = f32(0.0)
    for i in range(8):
        for j in range(6):
            total += kept[i] * f32(j)
    out[local_id(0)] = total


NOTHING = "group_id.x >> 31u"


def test_long_loops_of_a_known_length_are_rolled() -> None:
    assert f"i < 5u + ({NOTHING}); " in sums.specialise(TURNS=5).wgsl(rolls=True)
    assert NOTHING not in sums.specialise(TURNS=4).wgsl(rolls=True)
    assert NOTHING not in sums.specialise(TURNS=5).wgsl()
    assert "@builtin(workgroup_id) group_id" in sums.specialise(TURNS=5).wgsl(rolls=True)


def test_registers_are_read_by_numbers() -> None:
    """The counter of the outer loop is an index of a private array, that of the inner one is not."""
    text = keeps.specialise().wgsl(rolls=True)
    assert text.count(NOTHING) == text.count(f"j < 6u + ({NOTHING})")


def test_writing_a_text_changes_no_tree() -> None:
    x, out = np.arange(32, dtype=np.float32), np.zeros(4, np.float32)
    made = keeps.specialise()
    before = made.wgsl()
    made.wgsl(rolls=True)
    assert made.wgsl() == before
    made.run_python({"x": x, "out": out}, {}, (1, 1, 1))
    assert out.tolist() == (15 * x.reshape(8, 4).sum(0)).tolist()
