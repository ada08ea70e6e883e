"""Tuning of GPU backends: what is tried, checked, kept and refused; run in Python."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graphml_gpu import tuner, tuning
from graphml_gpu.device import GpuDevice
from graphml_gpu.driver import Facts
from graphml_gpu.plain_driver import FACTS, PlainDriver
from graphml_gpu.program import GpuProgram
from graphml_gpu.tuning import GpuTuning, Parameters, Product

from graphml.backend import TunableDevice, no_progress, tuning_file
from graphml.errors import BackendError, UsageError
from graphml.ir.dtype import F32
from graphml.ir.graph import Graph
from graphml.ir.language import Builder
from graphml.ir.op import Array
from graphml.ir.shape import Symbol
from graphml.passes.fusions.linear import linear
from graphml.passes.plan import plan_memory

N, K, ROWS = 6, 32, 2
USUAL = {"GROUP": 16, "LANES": 1, "ROWS": 1, "COLUMNS": 2}
OTHER = {"GROUP": 4, "LANES": 2, "ROWS": 2, "COLUMNS": 2}
GRAPHICS = dataclasses.replace(FACTS, kind="discrete", max_group=64)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tuning_file, "path", lambda: tmp_path / "tuning.json")
    monkeypatch.setattr(tuning, "candidates", lambda facts, product: [USUAL, OTHER])
    return tmp_path / "tuning.json"


def product() -> tuple[Graph, dict[str, Array]]:
    g = Builder()
    weight, x = g.weight("w", F32, (N, K)), g.input("x", F32, (Symbol("T", ROWS), K))
    weights = {"w": np.random.default_rng(0).standard_normal((N, K), np.float32)}
    return g.finish(y=g.call(linear, weight, x)), weights


def lowered(device: GpuDevice) -> GpuProgram:
    graph, weights = product()
    return device.lower(graph, plan_memory(graph, device), weights, no_progress)


def groups(device: GpuDevice) -> list[object]:
    return [dispatch.constants["GROUP"] for _, dispatch in lowered(device).dispatches]


def test_what_is_found_is_kept_and_used_where_it_is_wanted(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        tuner._GpuBench, "medians", lambda bench, programs: [1 / (1 + i) for i in range(len(programs))]
    )
    file.write_text(json.dumps({"entries": [{"cpu": "another backend's"}]}))
    device = GpuDevice(PlainDriver())
    assert isinstance(device, TunableDevice)
    graph, weights = product()
    (found,) = device.tune([graph, graph], weights, no_progress)
    assert (found.kernel, found.shape) == ("mat_vec-f32", "6 x 32, 2 rows")
    assert found.parameters == OTHER
    other, entry = json.loads(file.read_text())["entries"]
    assert other == {"cpu": "another backend's"}
    assert entry["parameters"] == OTHER
    assert groups(device) == [16]
    device.use_tuning(True)
    assert groups(device) == [4]
    device.use_tuning(False)
    assert groups(device) == [16]


def test_real_times_decide(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuner, "_ROUNDS", 1)
    graph, weights = product()
    (found,) = GpuDevice(PlainDriver()).tune([graph], weights, no_progress)
    assert found.usual_s >= found.tuned_s > 0


def test_parameters_that_give_another_product_are_refused(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "candidates", lambda facts, product: [USUAL, {**OTHER, "LANES": 4}])
    run = GpuProgram.run

    def wrong(program: GpuProgram, dims: dict[str, int], state: object) -> dict[str, Array]:
        made = run(program, dims, state)  # type: ignore[arg-type]
        lanes = program.dispatches[0][1].constants["LANES"]
        return made if lanes == 1 else {"y": made["y"] * 1.01}

    monkeypatch.setattr(GpuProgram, "run", wrong)
    graph, weights = product()
    with pytest.raises(BackendError, match=r"'LANES': 4.*is wrong, NMSE 0.0001"):
        GpuDevice(PlainDriver()).tune([graph], weights, no_progress)
    assert not file.exists()


def test_entries_are_checked_when_they_are_used(file: Path) -> None:
    device, shape = GpuDevice(PlainDriver()), Product("f32", N, K, ROWS)
    result = {"parameters": {**OTHER, "GROUP": 1024}, "usual_s": 2.0, "tuned_s": 1.0}
    tuning.save(FACTS, {shape: result})
    device.use_tuning(True)
    with pytest.raises(BackendError, match=r"tuning.json: Product.*1024.*remove the file"):
        lowered(device)
    tuning.save(FACTS, {shape: {**result, "parameters": {**OTHER, "GROUP": float(OTHER["GROUP"])}}})
    device.use_tuning(True)
    with pytest.raises(BackendError, match=r"tuning.json: Product.*remove the file"):
        lowered(device)
    tuning.save(FACTS, {shape: {**result, "parameters": "many"}})
    with pytest.raises(BackendError, match="no file of `graphml tune`"):
        device.use_tuning(True)
    tuning.save(dataclasses.replace(FACTS, driver="newer"), {shape: {**result, "parameters": OTHER}})
    tuning.save(FACTS, {shape: {**result, "parameters": {}}})
    device.use_tuning(True)
    assert groups(device) == [16]


def test_what_a_device_cannot_run_is_left_out_but_for_the_usual(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was found of the products before is kept by then."""
    refused: list[object] = [OTHER]

    def made(*parts: Any) -> GpuProgram:
        chosen: GpuTuning = parts[-1]
        if any(one in refused for one in chosen.entries.values()):
            raise BackendError("too many registers")
        return GpuProgram(*parts)

    monkeypatch.setattr(tuner, "GpuProgram", made)
    graph, weights = product()
    (found,) = GpuDevice(PlainDriver()).tune([graph], weights, no_progress)
    assert found.parameters == {}
    file.unlink()
    run = tuner._search

    def second_fails(bench: tuner._GpuBench, every: Sequence[Parameters]) -> object:
        if file.exists():
            raise KeyboardInterrupt
        return run(bench, every)

    monkeypatch.setattr(tuner, "_search", second_fails)
    g = Builder()
    other = g.weight("w", F32, (N, K)), g.input("x", F32, (Symbol("T", 1), K))
    with pytest.raises(KeyboardInterrupt):
        GpuDevice(PlainDriver()).tune([graph, g.finish(y=g.call(linear, *other))], weights, no_progress)
    assert len(json.loads(file.read_text())["entries"]) == 1
    refused.append(USUAL)
    file.unlink()
    with pytest.raises(BackendError, match="too many registers"):
        GpuDevice(PlainDriver()).tune([graph], weights, no_progress)


def test_processors_may_run_the_kernels_of_graphics_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = Product("q4_0", 5000, 576, 100)
    own, theirs = (
        tuning.usual(FACTS, shape),
        tuning.usual(dataclasses.replace(GRAPHICS, max_group=256), shape),
    )
    assert own != theirs
    monkeypatch.setenv("GRAPHML_GPU_KERNELS", "graphics")
    assert tuning.usual(FACTS, shape) == theirs
    monkeypatch.setenv("GRAPHML_GPU_KERNELS", "cards")
    with pytest.raises(UsageError, match="GRAPHML_GPU_KERNELS: wanted graphics, or nothing; got 'cards'"):
        tuning.usual(FACTS, shape)


def test_kernels_of_graphics_cards_are_tuned_for_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning_file, "path", lambda: tmp_path / "tuning.json")
    shape = Product("f32", N, K, ROWS)
    monkeypatch.setenv("GRAPHML_GPU_KERNELS", "graphics")
    tuning.save(FACTS, {shape: {"parameters": OTHER, "usual_s": 2.0, "tuned_s": 1.0}})
    assert tuning.load(FACTS).entries
    monkeypatch.delenv("GRAPHML_GPU_KERNELS")
    assert not tuning.load(FACTS).entries


@pytest.mark.parametrize("facts", [FACTS, GRAPHICS])
@pytest.mark.parametrize("columns", [1, 8, 100])
def test_all_that_is_tried_fits_the_device(facts: Facts, columns: int) -> None:
    tried = tuning.candidates(facts, Product("q4_0", 5000, 576, columns))
    assert tried[0] == tuning.usual(facts, Product("q4_0", 5000, 576, columns))
    assert len({tuple(one.items()) for one in tried}) == len(tried) > 1
    for one in tried:
        assert one["GROUP"] <= facts.max_group
        if "LANES" in one:
            assert one["GROUP"] % one["LANES"] == 0
        else:
            assert 64 * one["UNITS"] * (one["TILE_ROWS"] + one["TILE_COLUMNS"] + 1) <= facts.shared_bytes
