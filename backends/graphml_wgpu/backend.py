"""The wgpu backend as a value: what it can do, before any adapter is opened."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from graphml_gpu.backend import make_backend
from graphml_gpu.device_choice import describe

from graphml_wgpu import adapters
from graphml_wgpu.driver import WgpuDriver


def _describe() -> Mapping[str, Any]:
    return describe([adapters.facts(adapter) for adapter in adapters.adapters()], adapters.used())


BACKEND = make_backend("wgpu", WgpuDriver, adapters.unavailable, _describe)
