"""GPU backends for tests: devices opened by name share a driver, so what one test compiled others use.

Knows drivers by their contract; what is tested of drivers themselves opens its own.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from graphml_gpu.device import GpuDevice
from graphml_gpu.driver import Bound, Buffer, DispatchRecording, Driver, overlapping

from graphml.backend import Backend, Device, Progress, no_progress


class Borrowed:
    """A driver that gives back its own buffers when it is closed, and nothing else."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._made: list[Buffer] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)

    def buffer(self, n_bytes: int, label: str) -> Buffer:
        self._made.append(self._driver.buffer(n_bytes, label))
        return self._made[-1]

    def record(self, dispatches: Sequence[Bound], progress: Progress = no_progress) -> DispatchRecording:
        """What all tests bind, WebGPU would take."""
        if not self._driver.facts.overlaps:
            assert [one.kernel.title for one in dispatches if overlapping(one)] == []
        return self._driver.record(dispatches, progress)

    def close(self) -> None:
        self._driver.wait()
        for buffer in self._made:
            buffer.release()


def sharing(find: Callable[[str], Backend]) -> Callable[[str], Backend]:
    """How backends are found, with one driver for each device that a variable may choose."""
    drivers: dict[tuple[str | None, ...], Driver] = {}

    def opened(backend: Backend, threads: int | None) -> Device:
        names = (f"GRAPHML_{backend.name}_{what}".upper() for what in ("adapter", "device", "options"))
        chosen = (os.environ.get(name) for name in names)
        key = backend.name, *chosen
        if key not in drivers:
            device = backend.open(threads)
            if not isinstance(device, GpuDevice):
                return device
            drivers[key] = device.memory.driver
        return GpuDevice(Borrowed(drivers[key]))

    @functools.cache
    def found(name: str) -> Backend:
        backend = find(name)
        return replace(backend, open=functools.partial(opened, backend))

    return found


def remembering(generate: Callable[..., Any]) -> Callable[..., Any]:
    """What pyopencl calls a kernel with, by name and arguments.

    It reads that from a database on disk for every kernel object, and a recording has one per dispatch.
    """
    known: dict[Any, Any] = {}

    def remembered(*arguments: Any, devs: Any, **named: Any) -> Any:
        key = arguments, *sorted(named.items())
        if key not in known:
            known[key] = generate(*arguments, devs=devs, **named)
        return known[key]

    return remembered
