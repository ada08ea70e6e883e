"""The OpenCL backend as a value: what it can do, before any device is opened."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from graphml_gpu.backend import make_backend
from graphml_gpu.device_choice import describe

from graphml_opencl import devices
from graphml_opencl.driver import OpenclDriver


def _describe() -> Mapping[str, Any]:
    return describe([devices.facts(device) for device in devices.devices()], devices.used())


BACKEND = make_backend("opencl", OpenclDriver, devices.unavailable, _describe)
