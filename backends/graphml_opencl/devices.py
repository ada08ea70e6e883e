"""The OpenCL devices of this machine: what each is, and which one is used. Opens none."""

from __future__ import annotations

import functools
from typing import Any

from graphml_gpu.device_choice import choose, rank
from graphml_gpu.driver import MOST_BINDING_BYTES, Facts, Kind

from graphml.errors import BackendError
from graphml.settings import TEXT, Setting

DEVICE = Setting(
    "GRAPHML_OPENCL_DEVICE",
    TEXT,
    None,
    "OpenCL device: its number, or a part of its name or driver, such as nvidia.",
    shown="the first",
)
_INSTALL = "the package `pyopencl` is not installed; in a clone of graphml: pip install '.[opencl]'"
_NO_DEVICE = (
    "there is no OpenCL device of version 1.2 or newer; install the OpenCL driver of your GPU (for the "
    "processor itself: apt-get install pocl-opencl-icd)"
)
NEW = (3, 0)
"""The version whose compilers know subgroups and products of bytes."""
# The compiler for processors (2026.22 at least) takes a negated float for one value of the whole workgroup:
# behind a barrier every invocation has that of another.
_INTEL = "Intel(R) OpenCL"
_MOST_GROUPS = 2**31 - 1


def unavailable() -> str | None:
    """Why OpenCL cannot be used here; None where it can."""
    try:
        devices()
    except BackendError as error:
        return str(error)
    return None


@functools.cache
def devices() -> tuple[Any, ...]:
    """The devices (`pyopencl.Device`), discrete GPUs first; `BackendError` if there is none."""
    try:
        import pyopencl
    except (ImportError, OSError) as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == "pyopencl"
        raise BackendError(_INSTALL if missing else f"pyopencl cannot be loaded: {error}") from error
    try:
        candidates = [device for platform in pyopencl.get_platforms() for device in platform.get_devices()]
    except pyopencl.Error as error:
        raise BackendError(f"{_NO_DEVICE} ({error})") from error
    candidates = [device for device in candidates if version(device) >= (1, 2)]
    if not candidates:
        raise BackendError(_NO_DEVICE)
    return tuple(sorted(candidates, key=lambda device: rank(facts(device))))


def used() -> int:
    """The number of the device that `DEVICE` names, or the first."""
    known = [facts(device) for device in devices()]
    return choose(known, DEVICE(), DEVICE.name)


def version(device: Any) -> tuple[int, ...]:
    """The version of OpenCL that a device has: its text begins `OpenCL 3.0 `."""
    return tuple(int(part) for part in device.version.split()[1].split("."))


def facts(device: Any) -> Facts:
    """What a device is and can do."""
    extensions = device.extensions.split()
    new = version(device) >= NEW
    subgroups = new and _has_subgroups(device, extensions)
    least, most = _subgroup_sizes(device) if subgroups else (1, 1)
    sizes = device.max_work_item_sizes
    return Facts(
        name=device.name.strip(),
        vendor=device.vendor.strip(),
        driver=f"{device.platform.name} {device.driver_version}, {' '.join(device.version.split()[:2])}",
        backend="opencl",
        kind=_kind(device),
        memory_bytes=device.global_mem_size,
        max_buffer_bytes=device.max_mem_alloc_size,
        max_binding_bytes=min(device.max_mem_alloc_size, MOST_BINDING_BYTES),
        max_bindings=device.max_parameter_size // 8 - 1,
        max_group=device.max_work_group_size,
        max_group_sizes=(sizes[0], sizes[1], sizes[2]),
        max_groups=_MOST_GROUPS,
        shared_bytes=device.local_mem_size,
        offset_alignment=max(4, device.mem_base_addr_align // 8),
        subgroup_min=least,
        subgroup_max=most,
        has_subgroups=subgroups,
        has_f16="cl_khr_fp16" in extensions,
        has_dot4=new and "cl_khr_integer_dot_product" in extensions,
        has_timestamps=True,
        unified_memory=bool(device.host_unified_memory),
        overlaps=True,
        keeps_negated=_kind(device) != "cpu" or device.platform.name != _INTEL,
    )


def _kind(device: Any) -> Kind:
    import pyopencl

    if device.type & pyopencl.device_type.CPU:
        return "cpu"
    if device.type & pyopencl.device_type.GPU:
        return "integrated" if device.host_unified_memory else "discrete"
    return "other"


def _has_subgroups(device: Any, extensions: list[str]) -> bool:
    """Subgroups with shuffles, on a device of version 3.0 or newer.

    Subgroups are a feature since then; drivers need not list the extension that they were before.
    """
    if "cl_khr_subgroup_shuffle" not in extensions:
        return False
    return "cl_khr_subgroups" in extensions or any(
        feature.name == "__opencl_c_subgroups" for feature in device.opencl_c_features
    )


def _subgroup_sizes(device: Any) -> tuple[int, int]:
    """The least and the most invocations of a subgroup, where an extension of the vendors reports them."""
    import pyopencl

    for name in ("sub_group_sizes_intel", "wavefront_width_amd", "warp_size_nv"):
        try:
            reported = getattr(device, name)
        except (AttributeError, pyopencl.Error):
            continue
        sizes = [int(size) for size in reported] if name == "sub_group_sizes_intel" else [int(reported)]
        return min(sizes), max(sizes)
    return 1, int(device.max_work_group_size)
