"""Work for drivers of GPU libraries, for tests; where a library has no device they are skipped and say so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from graphml_gpu.driver import Bound, DispatchRecording, Driver
from graphml_gpu.language import (
    Read,
    Specialised,
    Update,
    f32,
    global_id,
    kernel,
    u32,
)

from graphml.loading import discovery

NAMES = ("wgpu", "opencl")


@kernel
def add_scaled(x: Read[f32], y: Update[f32], n: u32, factor: f32, *, GROUP: int = 64) -> None:
    """y += factor x. x, y [n]."""
    i = global_id(0)
    if i < n:
        y[i] = y[i] + factor * x[i]


def opened(name: str) -> Any:
    """The driver's class, with the module of its devices loaded; skips where there is no device."""
    backend = discovery.backend(name)
    reason = backend.unavailable()
    if reason is not None:
        pytest.skip(f"{name}: {reason}")
    if name == "wgpu":
        from graphml_wgpu.driver import WgpuDriver

        return WgpuDriver
    from graphml_opencl.driver import OpenclDriver

    return OpenclDriver


class Work:
    """x, y and scalars in one buffer, as programs have their values."""

    def __init__(self, driver: Driver, n: int = 100) -> None:
        self.driver, self.n = driver, n
        at = max(512, driver.facts.offset_alignment)
        self.x, self.y = 0, at
        self.arena, self.words = driver.buffer(2 * at, "arena"), driver.buffer(256, "words")
        self.kernel = add_scaled.specialise(driver.facts.features())
        driver.write(self.arena, self.x, np.arange(n, dtype=np.float32))
        self.give(2.0)

    def give(self, factor: float) -> None:
        self.driver.write(self.words, 0, self.kernel.words({"n": self.n, "factor": factor}))

    def bound(self, kernel: Specialised | None = None) -> Bound:
        size = 4 * self.n
        kernel = kernel or self.kernel
        scalars = (self.words, 0, 4 * len(self.kernel.scalars))
        return Bound(kernel, ((self.arena, self.x, size), (self.arena, self.y, size)), scalars)

    def recording(self, times: int = 1) -> DispatchRecording:
        return self.driver.record([self.bound()] * times)

    def result(self) -> list[float]:
        return self.driver.read([(self.arena, self.y, 4 * self.n)])[0].view(np.float32).tolist()  # type: ignore[no-any-return]


def expected(factor: float, n: int = 100) -> list[float]:
    return (np.float32(factor) * np.arange(n, dtype=np.float32)).tolist()  # type: ignore[no-any-return]


GRID = (2, 1, 1)
