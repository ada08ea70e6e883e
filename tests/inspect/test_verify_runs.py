"""Runs of edited graphs share values with earlier ones, and only with those that were given the same."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np

from graphml.authoring.verify.runs import RecordRuns
from graphml.ir.op import Array
from graphml.runtime.programs.load_options import LoadOptions
from graphml.runtime.programs.open_executor import open_executor
from tests.authoring.planted_models import HERE, write_model


def test_values_are_kept_for_the_same_given_ones_alone(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model.gguf", "plain")
    with closing(open_executor(model, LoadOptions("reference", arch=HERE / "plain.py", kv="f32"))) as opened:
        runs = RecordRuns(opened, (3, 1, 4))
        start, end = runs.places["stream.1"], "output:logits"

        def logits(given: dict[str, Array] | None, fresh: bool = False) -> Array:
            used = RecordRuns(opened, (3, 1, 4)) if fresh else runs
            return used.values(used.graph, [end], given, keep=True)[end]

        own = runs.values(runs.graph, [start], keep=True)[start]
        doubled = {start: own * np.float32(2)}
        whole, other = logits(None), logits(doubled)
        assert not np.array_equal(whole, other)
        assert np.array_equal(other, logits(doubled, fresh=True))
        assert logits(doubled) is other  # the same given ones: not computed again
        assert logits(None) is whole
        assert np.array_equal(logits({start: own}), whole)
        assert np.array_equal(
            runs.values(runs.graph, [start], doubled)[start], own
        )  # itself, not what is given
