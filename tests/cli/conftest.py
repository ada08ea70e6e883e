"""What the tests of commands share: the machine is measured by little memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from graphml.cli.terminal import machine


@pytest.fixture(autouse=True, scope="module")
def quick_bandwidth() -> Iterator[None]:
    """Reports say how fast the processor and each device read memory.

    Of a module, because there are commands that all its tests look at.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "BANDWIDTH_BYTES", 1 << 20)
        patch.setattr("graphml_gpu.bandwidth._WORKGROUPS", 64)
        patch.setattr("graphml_gpu.bandwidth._ON_PROCESSORS", 1 << 20)
        yield
