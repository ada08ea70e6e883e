"""States of recurrent ops are shown, compared and judged like values, though no node stands for them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from graphml_cpu.lowering.step import KernelCall, Scratch

from graphml.compiler.options import CompileOptions
from graphml.inspect.bisect.bisect import Bisection, bisect
from graphml.inspect.bisect.judging import Judge
from graphml.inspect.compare.forced import extract, forced, is_state
from graphml.inspect.compare.observe import observe, restore, save
from graphml.ir.node import Node
from graphml.ir.verify import verify
from graphml.runtime.programs.load_options import LoadOptions
from graphml.runtime.programs.open_executor import open_executor
from tests.inspect import faults
from tests.sample_models import MODELS, write_model

IDS = [7, 3, 9, 11, 60, 2]
NONE = CompileOptions(fuse="none")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("states") / "m.gguf", *MODELS["mamba2-groups"])


def judged(model: Path, backend: str = "cpu") -> Bisection:
    a, b = (open_executor(model, LoadOptions(name, 2, n_batch=32)) for name in (backend, "reference"))
    try:
        run, other = observe(a, IDS), observe(b, IDS, NONE)
        return bisect(run, other, Judge(b, NONE, own=a.device))
    finally:
        a.close()
        b.close()


def moved_twice(node: Node, steps: list[KernelCall]) -> list[KernelCall]:
    """The right result, and then the state moves on once more, but where it begins anew."""
    again = {"out": Scratch(1 << 20)}
    return [*steps, *(replace(step, arguments={**step.arguments, **again}) for step in steps)]


def test_states_are_shown_and_nothing_is_wrong(model: Path) -> None:
    found = judged(model)
    assert not found.findings
    names = [reading.node.name for reading in found.readings if reading.step == "prefill"]
    assert names.index("cache.1.ssm") == names.index("layers.1.scan") + 1


def test_a_state_that_is_left_wrong_is_named(model: Path) -> None:
    """All values of the step are right; only what the next one would begin with is not."""
    with faults.wrong_lowering("ssm_conv_silu", moved_twice):
        found = judged(model)
    assert found.first is not None
    assert (found.first.step, found.first.node.name) == ("decode", "cache.0.conv")
    assert found.first.made_by.name == "ssm_conv_silu"
    assert {one.node.name for one in found.findings if one.kind == "kernel"} == {
        "cache.0.conv",
        "cache.1.conv",
    }


def test_graphs_cut_open_are_well_formed_and_saved_runs_hold_states(model: Path, tmp_path: Path) -> None:
    executor = open_executor(model, LoadOptions("cpu", 2, n_batch=32))
    run = observe(executor, IDS)
    executor.close()
    step = run.steps[0]
    given = {name for name in step.values if not is_state(step.graph.node(name))}
    verify(forced(step.graph, given))
    for name in step.values:
        assert set(verify(extract(step.graph, name, given)).outputs) == {"result"}
    save(run, tmp_path / "run.npz")
    again = restore(tmp_path / "run.npz", executor.weights)
    np.testing.assert_array_equal(again.steps[1].values["cache.0.ssm"], run.steps[1].values["cache.0.ssm"])
    assert np.any(run.steps[0].values["cache.0.ssm"] != run.steps[1].values["cache.0.ssm"])
