"""What the tests of commands share: the machine is measured by little memory and small matrices."""

from __future__ import annotations

import pytest

from graphml.cli import machine


@pytest.fixture(autouse=True)
def quick_bandwidth(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports say how fast the processor and each device read memory, pictures how fast it multiplies."""
    monkeypatch.setattr(machine, "BANDWIDTH_BYTES", 1 << 20)
    monkeypatch.setattr(machine, "_MULTIPLY", machine._MULTIPLY.replace("1024", "64"))
    monkeypatch.setattr("graphml_gpu.bandwidth._WORKGROUPS", 64)
    monkeypatch.setattr("graphml_gpu.bandwidth._ON_PROCESSORS", 1 << 20)
