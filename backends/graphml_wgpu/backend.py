"""The wgpu backend as a value: what it can do, before any adapter is looked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from graphml_gpu.backend import describe_facts, make_backend
from graphml_gpu.driver import Driver

from graphml_wgpu import adapters
from graphml_wgpu.driver import WgpuDriver


def _describe() -> Mapping[str, Any]:
    return describe_facts(adapters.facts(adapters.chosen()))


def _open() -> Driver:
    return cast(Driver, WgpuDriver())  # it takes its own buffers alone


BACKEND = make_backend("wgpu", _open, adapters.unavailable, _describe)
