"""Backends made of drivers: what a package that brings a driver calls to become one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from graphml.backend import Backend
from graphml_gpu.device import GpuDevice
from graphml_gpu.driver import Driver
from graphml_gpu.lowering import table
from graphml_gpu.node_support import GpuNodeSupport


def make_backend(
    name: str,
    open_driver: Callable[[], Driver],
    unavailable: Callable[[], str | None],
    describe: Callable[[], Mapping[str, Any]] = dict,
) -> Backend:
    """A backend of a driver.

    name: as the user writes it. open_driver: opens the device of the user's choice; `BackendError` where it
    cannot. unavailable: why there is none on this machine, or None. describe: facts for `graphml doctor`.
    The number of threads that a user gives means nothing to a GPU.
    """
    return Backend(
        name,
        open=lambda threads: GpuDevice(open_driver(), name),
        refuses=GpuNodeSupport(name).refuses,
        fused=frozenset(table()),
        unavailable=unavailable,
        describe=describe,
        reads_back=True,
    )
