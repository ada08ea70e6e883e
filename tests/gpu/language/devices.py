"""One kernel on a device, without the runtime."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from graphml_gpu.driver import Bound, Driver
from graphml_gpu.language import Specialised

DRIVERS = {"wgpu": ("graphml_wgpu", "WgpuDriver"), "opencl": ("graphml_opencl", "OpenclDriver")}


def open_driver(name: str) -> Driver:
    """The driver's device; the test is skipped, saying what is missing, where there is none."""
    package, value = DRIVERS[name]
    missing = importlib.import_module(package).BACKEND.unavailable()
    if missing:
        pytest.skip(missing)
    driver: Driver = getattr(importlib.import_module(f"{package}.driver"), value)()
    return driver


def run_on(
    driver: Driver,
    kernel: Specialised,
    buffers: Mapping[str, np.ndarray[Any, Any]],
    scalars: Mapping[str, int | float],
    groups: tuple[int, int, int],
) -> dict[str, np.ndarray[Any, Any]]:
    """What the buffers hold afterwards. Each begins four elements behind the beginning of its binding."""
    memory, ranges = {}, []
    begins = {f"{argument.name}_at": 4 for argument in kernel.buffers}
    for argument in kernel.buffers:
        array = buffers[argument.name]
        begin = 4 * argument.element.n_bytes
        size = -(-(begin + array.nbytes) // 4) * 4
        memory[argument.name] = (driver.buffer(size, argument.name), begin, array)
        padded = np.zeros(size, np.uint8)
        padded[begin : begin + array.nbytes] = array.reshape(-1).view(np.uint8)
        driver.write(memory[argument.name][0], 0, padded)
        ranges.append((memory[argument.name][0], 0, size))
    words = kernel.words({**scalars, **begins})
    parameters = driver.buffer(256 * -(-words.nbytes // 256), "scalars")
    driver.write(parameters, 0, words)
    bound = Bound(kernel, tuple(ranges), (parameters, 0, words.nbytes))
    driver.submit(driver.record([bound]), [groups])
    made = driver.read(ranges)
    for buffer, _, _ in [*memory.values(), (parameters, 0, None)]:
        buffer.release()
    return {
        name: raw[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
        for (name, (_, begin, array)), raw in zip(memory.items(), made, strict=True)
    }
