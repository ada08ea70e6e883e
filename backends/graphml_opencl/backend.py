"""The OpenCL backend as a value: what it can do, before any platform is looked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from graphml_gpu.backend import describe_facts, make_backend
from graphml_gpu.driver import Driver

from graphml_opencl import devices
from graphml_opencl.driver import OpenclDriver


def _describe() -> Mapping[str, Any]:
    return describe_facts(devices.facts(devices.chosen()))


def _open() -> Driver:
    return cast(Driver, OpenclDriver())  # it takes its own buffers alone


BACKEND = make_backend("opencl", _open, devices.unavailable, _describe)
