"""What Vulkan reports of devices and wgpu does not: own memory, sizes of subgroups. Asks the loader itself.

Knows nothing of wgpu. Structures are those of https://registry.khronos.org/vulkan/specs.
"""

from __future__ import annotations

import ctypes
import functools
import struct
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

Device = tuple[int, int, str]
"""Vendor and number as PCI has them, and the name: what a driver calls a device everywhere."""

_LIBRARY = "vulkan-1.dll" if sys.platform == "win32" else "libvulkan.so.1"
_VERSION_1_3 = 1 << 22 | 3 << 12
_MOST = 64
_DEVICE_LOCAL = 1
# VkPhysicalDeviceProperties: five numbers, of which the first is the version, the third and fourth the vendor
# and the device; a name in 256 bytes; limits
_PROPERTIES, _NUMBERS, _NAME = 2048, struct.Struct("<I4xII"), slice(20, 276)
# VkPhysicalDeviceMemoryProperties: a count and 32 types of 8 bytes, then a count and 16 heaps of 16 bytes
_HEAP_COUNT, _HEAPS, _HEAP = 260, 264, struct.Struct("<QI4x")
# What begins most structures: its type, and the next of the chain. VkPhysicalDeviceProperties2 and
# VkPhysicalDeviceSubgroupSizeControlProperties: the least and the most, two other numbers
_HEAD, _PROPERTIES_2, _SUBGROUPS, _SIZES = struct.Struct("@IP"), 1000059001, 1000225000, struct.Struct("@II")


@dataclass(frozen=True)
class Told:
    """memory_bytes: the largest heap of the device's own; subgroups: least and most invocations, if known."""

    memory_bytes: int
    subgroups: tuple[int, int] | None


@functools.cache
def devices() -> Mapping[Device, Told]:
    """What is told of each device; nothing where there is no Vulkan."""
    try:
        library = ctypes.CDLL(_LIBRARY)
    except OSError:
        return {}
    with _instance(library) as instance:
        return (
            {}
            if instance is None
            else dict(_device(library, handle) for handle in _handles(library, instance))
        )


@contextmanager
def _instance(library: Any) -> Iterator[ctypes.c_void_p | None]:
    """An instance without extensions; None where the loader makes none."""
    instance = ctypes.c_void_p()
    # VkApplicationInfo: nothing but the version; VkInstanceCreateInfo: nothing but that
    application = ctypes.create_string_buffer(struct.pack("@IPPIPII", 0, 0, 0, 0, 0, 0, _VERSION_1_3))
    wanted = struct.pack("@IPIPIPIP", 1, 0, 0, ctypes.addressof(application), 0, 0, 0, 0)
    if library.vkCreateInstance(wanted, None, ctypes.byref(instance)) != 0:
        yield None
        return
    try:
        yield instance
    finally:
        library.vkDestroyInstance(instance, None)


def _handles(library: Any, instance: ctypes.c_void_p) -> list[ctypes.c_void_p]:
    count, handles = ctypes.c_uint32(_MOST), (ctypes.c_void_p * _MOST)()
    if library.vkEnumeratePhysicalDevices(instance, ctypes.byref(count), handles) < 0:
        return []
    return [ctypes.c_void_p(handle) for handle in handles[: count.value]]


def _device(library: Any, handle: ctypes.c_void_p) -> tuple[Device, Told]:
    properties = ctypes.create_string_buffer(_PROPERTIES)
    library.vkGetPhysicalDeviceProperties(handle, properties)
    version, vendor, number = _NUMBERS.unpack_from(properties.raw)
    name = properties.raw[_NAME].split(b"\0")[0].decode("utf-8", "replace")
    subgroups = _subgroups(library, handle) if version >= _VERSION_1_3 else None
    return (vendor, number, name), Told(_memory_bytes(library, handle), subgroups)


def _memory_bytes(library: Any, handle: ctypes.c_void_p) -> int:
    properties = ctypes.create_string_buffer(_PROPERTIES)
    library.vkGetPhysicalDeviceMemoryProperties(handle, properties)
    (count,) = struct.unpack_from("<I", properties.raw, _HEAP_COUNT)
    heaps = [_HEAP.unpack_from(properties.raw, _HEAPS + i * _HEAP.size) for i in range(min(count, 16))]
    return max((size for size, flags in heaps if flags & _DEVICE_LOCAL), default=0)


def _subgroups(library: Any, handle: ctypes.c_void_p) -> tuple[int, int] | None:
    sizes = ctypes.create_string_buffer(_HEAD.pack(_SUBGROUPS, 0), 64)
    properties = ctypes.create_string_buffer(_HEAD.pack(_PROPERTIES_2, ctypes.addressof(sizes)), _PROPERTIES)
    library.vkGetPhysicalDeviceProperties2(handle, properties)
    least, most = _SIZES.unpack_from(sizes.raw, _HEAD.size)
    return (least, most) if 0 < least <= most else None
