"""What a benchmark says of a GPU backend: the device that works, and what its own memory gives."""

from __future__ import annotations

from pathlib import Path

import pytest
from graphml_gpu.bandwidth import copy_bandwidth

from graphml.bench.runner import Runner
from graphml.bench.test_plan import Setting
from graphml.errors import BackendError
from tests import tiny_model
from tests.gpu.driven import NAMES, opened


@pytest.mark.parametrize("name", NAMES)
def test_a_runner_names_its_device_and_measures_its_memory(name: str, tmp_path: Path) -> None:
    opened(name)
    runner = Runner(Setting("graphml", str(tiny_model.write(tmp_path / "tiny.gguf")), name, 1))
    try:
        facts = runner.model.executor.device.facts  # type: ignore[attr-defined]
        said = runner.describe()["device"]
        assert (said["name"], said["driver"]) == (facts.name, facts.driver)
        assert said["kind"] in ("discrete", "integrated", "processor", "other")
        assert runner.bandwidth() > 1e8
    finally:
        runner.close()


@pytest.mark.parametrize("name", NAMES)
def test_without_room_for_a_copy_no_bandwidth_is_told(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(n_bytes: int, label: str) -> None:
        raise BackendError("no room")

    driver = opened(name)()
    try:
        monkeypatch.setattr(driver, "buffer", full)
        assert copy_bandwidth(driver) == 0.0
    finally:
        driver.close()
