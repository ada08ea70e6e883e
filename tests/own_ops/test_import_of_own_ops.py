"""`graphml import` finds ops of one's own by what a part of the graph computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graphml.authoring.importing.command import checkpoint
from graphml.authoring.importing.importing import import_description
from graphml.errors import ArchitectureError
from graphml.ops import ROWS, f32, op, sample
from tests.import_records import described, write_folder


def with_mish(found: dict[str, Any]) -> None:
    """The record of a llama whose gate is mish, which no op of graphml is."""
    for node in found["nodes"]:
        if node["op"] == "aten.silu.default":
            node["op"] = "aten.mish.default"


def test_a_part_that_an_own_op_computes_becomes_a_call_of_it(tmp_path: Path) -> None:
    description = described("llama", tmp_path / "record", with_mish)
    write_folder(description, tmp_path / "checkpoint")
    held = checkpoint(tmp_path / "checkpoint")
    with pytest.raises(ArchitectureError, match=r"mish.*recognised as nothing that graphml has an op for"):
        import_description(description, held)

    @op(shape=lambda x: x, samples=[sample(f32(ROWS, 8))])
    def bounded(x: Any) -> Any:  # an op of something else, which raises on these values
        if np.abs(x).max() > 8:
            raise ValueError("too large")
        return x

    @op(shape=lambda x: x, samples=[sample(f32(ROWS, 8))])
    def mish(x: Any, *, slope: float = 1.0) -> Any:
        return slope * x * np.tanh(np.logaddexp(0.0, x.astype(np.float64)))

    imported = import_description(description, held)
    assert "g.mish(" in imported.text
    assert "g.silu(" not in imported.text
    assert (
        "Its op mish is declared in test_import_of_own_ops.py: GRAPHML_OPS has to name that file"
        in imported.text
    )
    assert "mish" in {one.op for one in imported.recognised.values()}


def test_an_op_with_another_meaning_is_not_taken_for_it(tmp_path: Path) -> None:
    @op(shape=lambda x: x, samples=[sample(f32(ROWS, 8))])
    def almost_mish(x: Any) -> Any:
        return 1.001 * x * np.tanh(np.logaddexp(0.0, x.astype(np.float64)))

    description = described("llama", tmp_path / "record", with_mish)
    write_folder(description, tmp_path / "checkpoint")
    with pytest.raises(ArchitectureError, match="recognised as nothing"):
        import_description(description, checkpoint(tmp_path / "checkpoint"))
