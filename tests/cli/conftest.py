"""What the tests of commands share: memory is read to find its bandwidth in small pieces."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def quick_bandwidth(monkeypatch: pytest.MonkeyPatch) -> None:
    """A report says how fast memory is read, the processor's and each device's."""
    monkeypatch.setattr("graphml.cli.machine.BANDWIDTH_BYTES", 1 << 20)
    monkeypatch.setattr("graphml_gpu.bandwidth._WORKGROUPS", 64)
    monkeypatch.setattr("graphml_gpu.bandwidth._ON_PROCESSORS", 1 << 20)
