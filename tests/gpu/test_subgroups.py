"""Subgroups of any size and filling: what is summed across them is what is summed without them.

In the emulator, which gives subgroups any size that a device may have, and on lavapipe, whose subgroups are
used as a graphics card's would be. That lanes are neighbours, which no device promises, is tried out first.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import cast

import numpy as np
import pytest
from graphml_gpu.device import GpuDevice
from graphml_gpu.driver import Bound, Driver
from graphml_gpu.kernels.lanes import lanes
from graphml_gpu.language import Features, Lanes
from graphml_gpu.plain_driver import PlainDriver
from graphml_gpu.subgroups import checked

from graphml.backend import Progress, no_progress
from graphml.conformance import suite
from graphml.conformance.cases import Case
from graphml.conformance.trial import Trial, TrialRun
from graphml.errors import BackendError
from graphml.ir.shape import bounds
from tests.gpu.cover import GRAPHICS, PLAIN, SUBGROUPS, with_subgroups
from tests.gpu.language.devices import open_driver
from tests.gpu.language.examples import EXAMPLES
from tests.gpu.on_devices import pretending

SIZES = (1, 4, 8, 16, 32, 64)
OPS = (
    "add_rms_norm", "attention", "sample_row", "gated_delta_net", "linear", "linear_attention", "linear_id",
    "linears", "mul_mat_glu", "relative_attention", "rms_norm", "route_experts", "selected_attention",
    "softmax", "sum_rows", "top_k",
)  # fmt: skip
"""Whose kernels make use of subgroups."""
OF_ANY_SIZE = ("add_rms_norm", "rms_norm", "softmax", "sum_rows", "top_k")
"""Those whose kernels do so whatever the size."""
MOST = 5000  # elements of an operand: the emulator is slow
DEVICES = {
    "of any size, 32": (SUBGROUPS["of any size"], 32, OF_ANY_SIZE),
    "of 8 to 32, 16": (SUBGROUPS["of 8 to 32"], 16, ("attention", *OPS[::2])),
    "of 64": (SUBGROUPS["of 64"], 64, ("attention", *OPS[3::2])),
}
"""Name -> what the device tells, how large its subgroups are, and the ops that are tried, in turn.

A kernel's sums across subgroups are those of helpers, which `test_sums_do_not_depend_on_how_subgroups_lie`
tries with all sizes.
"""


@pytest.mark.parametrize("apart", [False, True], ids=["neighbours", "apart"])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ["rms_norm", "memory", "across"])
def test_sums_do_not_depend_on_how_subgroups_lie(name: str, size: int, apart: bool) -> None:
    """Sums over the workgroup need no neighbours; those of neighbours need subgroups that hold them."""
    example = EXAMPLES[name]
    least = 1 if apart else min(size, 4)
    for features in (
        Features(subgroups=True, subgroup_min=least, subgroup_max=64),
        Features(subgroups=True, subgroup_min=1 if apart else size, subgroup_max=size),
    ):
        made = {buffer: array.copy() for buffer, array in example.buffers.items()}
        kernel = example.specialise(features)
        assert kernel.subgroups
        kernel.run_python(made, example.scalars, example.groups, Lanes(size, apart))
        example.check(made)


def small(op: str, most: int = MOST) -> list[Case]:
    """The first case of an op on plain numbers that is small enough."""
    some = suite.chosen(PLAIN, op, ["f32"])
    fit = (c for c in some if c.inplace < 0 and all(prod(bounds(t.shape)) <= most for t in c.sample.inputs))
    return [next(fit).at(2)]


@pytest.mark.parametrize(("name", "op"), [(name, op) for name in DEVICES for op in DEVICES[name][2]])
def test_kernels_mean_the_same_with_subgroups_of_any_size(op: str, name: str) -> None:
    facts, size, _ = DEVICES[name]
    device = GpuDevice(PlainDriver(facts, Lanes(size)))
    trial = Trial(small(op), PLAIN, device, "graphml", in_arena=False)
    assert not any(trial.refused)
    assert not [str(verdict) for verdict in trial.run(TrialRun(2)) if verdict.failed]


@pytest.mark.parametrize("op", OPS)
def test_lavapipe_runs_what_a_graphics_card_would(op: str) -> None:
    """Its subgroups are all of one size; where that is told, neighbours share by shuffles."""
    driver = open_driver("wgpu")
    size = size_of(driver)
    facts = with_subgroups(size, size, replace(driver.facts, kind="discrete"))
    device = GpuDevice(pretending(driver, facts))
    assert device.memory.features.subgroups
    some = suite.chosen(PLAIN, op, ["f32", "q4_0"])[:2]
    verdicts = [
        v for case in some for v in Trial([case.at(5)], PLAIN, device, "graphml", False).run(TrialRun(5))
    ]
    assert not [str(verdict) for verdict in verdicts if verdict.failed]


def size_of(driver: Driver) -> int:
    """Invocations of a subgroup."""
    sizes = (4, 8, 16, 32, 64, 128)
    usable = (s for s in sizes if checked(pretending(driver, with_subgroups(s, s, driver.facts))).subgroups)
    return next(usable)


@pytest.mark.parametrize("size", SIZES)
def test_subgroups_that_are_as_told_are_used(size: int) -> None:
    facts = with_subgroups(min(size, 4), 64)
    assert checked(PlainDriver(facts, Lanes(size))) == facts.features()


@pytest.mark.parametrize(
    ("order", "told"),
    [
        (Lanes(16, apart=True), "subgroup of invocation 1: 1, not 0"),
        (Lanes(4), "one has 4 lanes, not 8 to 32"),
        (Lanes(64), "one has 64 lanes, not 8 to 32"),
    ],
)
def test_a_device_whose_subgroups_are_not_as_told_goes_without(
    order: Lanes, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        device = GpuDevice(PlainDriver(SUBGROUPS["of 8 to 32"], order))
    assert device.memory.features == GRAPHICS.features()
    assert told in caplog.text
    trial = Trial(small("linear_attention"), PLAIN, device, "graphml", in_arena=False)
    assert not [str(verdict) for verdict in trial.run(TrialRun(2)) if verdict.failed]


class Refusing(PlainDriver):
    """A driver whose compiler takes no kernel."""

    def record(self, dispatches: Sequence[Bound], progress: Progress = no_progress) -> Sequence[Bound]:
        raise BackendError(f"kernel {dispatches[0].kernel.name}: the compiler says no")


@pytest.mark.parametrize("kind", ["emulated", "opencl"])
def test_a_device_that_cannot_compile_them_goes_without(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """PoCL has none, so its compiler knows none."""
    driver = open_driver(kind) if kind == "opencl" else cast(Driver, Refusing())
    if driver.facts.has_subgroups:
        pytest.skip("this device has subgroups")
    with caplog.at_level(logging.WARNING):
        features = checked(pretending(driver, with_subgroups(8, 32, driver.facts)))
    assert not features.subgroups
    assert "kernels do without subgroups: kernel lanes" in caplog.text


def test_what_no_lane_has_is_no_number() -> None:
    """A shuffle from beyond the last lane gives anything on a device: here something that shows."""
    made = {"out": np.zeros((6, 8), np.uint32)}
    features = Features(subgroups=True, subgroup_min=4, subgroup_max=8)
    lanes.specialise(features, GROUP=6).run_python(made, {}, (1, 1, 1), Lanes(4))
    assert made["out"][:, 4].tolist() == [2, 3, 0, 1, 0x5EED, 0x5EED]
