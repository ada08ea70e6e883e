"""The adapters of this machine: what each is, and which one is used. Opens no device.

An adapter is a driver of a GPU: one GPU may have several (Vulkan and DX12). OpenGL ones are left out: they
lack what kernels need.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from graphml_gpu.device_choice import choose, rank
from graphml_gpu.driver import MOST_BINDING_BYTES, Facts, Kind

from graphml.errors import BackendError
from graphml.settings import TEXT, Setting
from graphml.system.pages import main_memory
from graphml_wgpu import vulkan

ADAPTER = Setting(
    "GRAPHML_WGPU_ADAPTER",
    TEXT,
    None,
    "Adapter of wgpu: its number, or a part of its name or driver, such as nvidia or vulkan.",
    shown="the first",
)

FEATURES = ("shader-f16", "subgroup", "subgroup-barrier", "timestamp-query")
"""Features that are switched on where they are offered."""

NO_LIMITS: Mapping[str, int] = MappingProxyType({})
"""All that the adapter has."""

_KINDS: dict[str, Kind] = {
    "DiscreteGPU": "discrete",
    "IntegratedGPU": "integrated",
    "CPU": "cpu",
}
_INSTALL = "the package `wgpu` is not installed; in a clone of graphml: pip install '.[wgpu]'"
_NO_ADAPTER = (
    "wgpu finds no Vulkan, Metal or DX12 adapter; on Linux it needs the Vulkan loader and a driver (for the "
    "processor itself: apt-get install mesa-vulkan-drivers libvulkan1)"
)


def unavailable() -> str | None:
    """Why wgpu cannot be used here; None where it can."""
    try:
        adapters()
    except BackendError as error:
        return str(error)
    return None


@functools.cache
def adapters() -> tuple[Any, ...]:
    """The adapters (`wgpu.GPUAdapter`), those of discrete GPUs first; `BackendError` if there is none."""
    try:
        import wgpu
        from wgpu.backends.wgpu_native import extras
    except (ImportError, OSError, RuntimeError) as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == "wgpu"
        raise BackendError(_INSTALL if missing else f"wgpu cannot be loaded: {error}") from error
    with contextlib.suppress(RuntimeError):  # somebody else in this process has begun to use wgpu
        extras.set_instance_extras(backends=["Vulkan", "Metal", "DX12"])
    candidates = [a for a in wgpu.gpu.enumerate_adapters_sync() if a.info["backend_type"] != "OpenGL"]
    if not candidates:
        raise BackendError(_NO_ADAPTER)
    return tuple(sorted(candidates, key=lambda adapter: rank(facts(adapter))))


def used() -> int:
    """The number of the adapter that `ADAPTER` names, or the first."""
    devices = [facts(adapter) for adapter in adapters()]
    return choose(devices, ADAPTER(), ADAPTER.name)


_LOOP_TURNS = 65535
"""Of Mesa's llvmpipe, lavapipe in Vulkan: `LP_MAX_TGSI_LOOP_ITERATIONS` in its `lp_bld_limits.h`."""


def facts(adapter: Any, wanted: Mapping[str, int] = NO_LIMITS) -> Facts:
    """What an adapter is and can do; a device is opened with all of it, or with the limits wanted."""
    info, limits, features = adapter.info, {**adapter.limits, **wanted}, adapter.features
    kind: Kind = _KINDS.get(info["adapter_type"], "other")
    vulkan_facts = _told(info)
    least, most = _subgroup_sizes(vulkan_facts) if "subgroup" in features else (1, 1)
    return Facts(
        name=info["device"],
        vendor=info["vendor"],
        driver=f"{info['backend_type']}, {info['description']}".rstrip(", "),
        backend="wgpu",
        kind=kind,
        memory_bytes=_memory_bytes(vulkan_facts, kind),
        max_buffer_bytes=limits["max-buffer-size"],
        max_binding_bytes=min(limits["max-storage-buffer-binding-size"], MOST_BINDING_BYTES),
        max_bindings=limits["max-storage-buffers-per-shader-stage"],
        max_group=limits["max-compute-invocations-per-workgroup"],
        max_group_sizes=(
            limits["max-compute-workgroup-size-x"],
            limits["max-compute-workgroup-size-y"],
            limits["max-compute-workgroup-size-z"],
        ),
        max_groups=limits["max-compute-workgroups-per-dimension"],
        shared_bytes=limits["max-compute-workgroup-storage-size"],
        offset_alignment=max(
            limits["min-storage-buffer-offset-alignment"], limits["min-uniform-buffer-offset-alignment"]
        ),
        subgroup_min=least,
        subgroup_max=most,
        has_subgroups="subgroup" in features,
        has_f16="shader-f16" in features,
        # WGSL has the function everywhere; Metal has no instruction for it
        has_dot4=info["backend_type"] in ("Vulkan", "D3D12"),
        has_timestamps="timestamp-query" in features,
        unified_memory=kind in ("cpu", "integrated"),
        loop_turns=_LOOP_TURNS if "llvmpipe" in info["device"] else None,
    )


def _told(info: Any) -> vulkan.Told | None:
    """What Vulkan reports of an adapter beyond what wgpu does."""
    if info["backend_type"] != "Vulkan":
        return None
    return vulkan.devices().get((info["vendor_id"], info["device_id"], info["device"]))


def _subgroup_sizes(vulkan_facts: vulkan.Told | None) -> tuple[int, int]:
    """The least and the most invocations of a subgroup; what WebGPU allows where they are unknown.

    That is what wgpu-py has in `adapter.info`, for every adapter: wgpu-native 29 does not report it.
    """
    return (vulkan_facts.subgroups if vulkan_facts else None) or (4, 128)


def _memory_bytes(vulkan_facts: vulkan.Told | None, kind: Kind) -> int | None:
    """The device's memory, if known; that of an integrated one may go beyond its own."""
    if kind == "cpu":
        return main_memory()
    return vulkan_facts.memory_bytes if vulkan_facts and kind == "discrete" else None
