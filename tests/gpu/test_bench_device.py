"""What a benchmark says of a GPU backend: the device that works, and what its own memory gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graphml_gpu.bandwidth import read_bandwidth
from graphml_gpu.driver import Bound
from graphml_gpu.kernels.read_memory import read_memory
from graphml_gpu.plain_driver import PlainDriver

from graphml.bench.runner import BenchRunner
from graphml.bench.test_plan import SideParameters
from graphml.errors import BackendError
from tests import tiny_model
from tests.gpu.driven import NAMES, opened


@pytest.mark.parametrize("name", NAMES)
def test_a_runner_names_its_device_and_measures_its_memory(name: str, tmp_path: Path) -> None:
    opened(name)
    runner = BenchRunner(SideParameters("graphml", str(tiny_model.write(tmp_path / "tiny.gguf")), name, 1))
    try:
        facts = runner.model.executor.device.facts  # type: ignore[attr-defined]
        said = runner.describe()["device"]
        assert (said["name"], said["driver"]) == (facts.name, facts.driver)
        assert said["kind"] in ("discrete", "integrated", "processor", "other")
        assert runner.bandwidth() > 1e8
    finally:
        runner.close()


@pytest.mark.parametrize("n_rounds", [1, 3])
@pytest.mark.parametrize("name", [*NAMES, "plain"])
def test_every_word_is_read_once(name: str, n_rounds: int) -> None:
    group, n_groups, n_loads = 64, 3, 2
    driver = PlainDriver() if name == "plain" else opened(name)()
    try:
        words = np.random.default_rng(3).integers(
            0, 1 << 32, n_rounds * n_groups * n_loads * group * 4, np.uint32
        )
        data, out = driver.buffer(words.nbytes, "data"), driver.buffer(4 * n_groups * group, "sums")
        numbers = driver.buffer(16, "numbers")
        kernel = read_memory.specialise(
            driver.facts.features(), GROUP=group, N_GROUPS=n_groups, N_LOADS=n_loads
        )
        driver.write(data, 0, words)
        driver.write(numbers, 0, kernel.words({"rounds": n_rounds}))
        ranges = (data, 0, words.nbytes), (out, 0, out.n_bytes)
        driver.submit(driver.record([Bound(kernel, ranges, (numbers, 0, 16))]), [(n_groups, 1, 1)])
        (found,) = driver.read([(out, 0, out.n_bytes)])
        assert found.view(np.uint32).sum(dtype=np.uint32) == words.sum(dtype=np.uint32)
    finally:
        driver.close()


@pytest.mark.parametrize("name", NAMES)
def test_where_there_is_room_for_less_that_is_read(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = opened(name)()
    real, asked = driver.buffer, list[int]()

    def nearly_full(n_bytes: int, label: str) -> Any:
        asked.append(n_bytes)
        if n_bytes > 40 << 20:
            raise BackendError("no room")
        return real(n_bytes, label)

    try:
        monkeypatch.setattr(driver, "buffer", nearly_full)
        assert read_bandwidth(driver, 1) > 1e8
        assert asked[0] > 40 << 20 >= asked[-3]
        assert driver.buffers.n_bytes == 0
    finally:
        driver.close()


@pytest.mark.parametrize("name", NAMES)
def test_without_room_to_read_no_bandwidth_is_told(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(n_bytes: int, label: str) -> None:
        raise BackendError("no room")

    driver = opened(name)()
    try:
        monkeypatch.setattr(driver, "buffer", full)
        assert read_bandwidth(driver) == 0.0
    finally:
        driver.close()
