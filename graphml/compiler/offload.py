"""Layer offload: puts as many layers on the GPU as the user asks for, else as many as fit in its memory.

Knows names of tensors, layers and backends; nothing of graphs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from graphml.backend import Device, MemoryDevice
from graphml.compiler.multi_device import PartsDevice
from graphml.errors import UsageError
from graphml.loading import discovery
from graphml.weights import Tensor

_LAYER = re.compile(r"blk\.(\d+)\.")
_ON_THE_HOST = ("cpu", "reference")
# Memory reserved for programs, the key-value cache, and other users of the device.
_SHARE = 0.8


def with_host(backends: str, gpu_layers: int | None) -> str:
    """The backends of a model of which only some layers go to the first: a single backend gets the CPU added.

    `UsageError` for layers that would go from the CPU to the CPU.
    """
    if gpu_layers is None or "," in backends or (gpu_layers == 0 and backends in _ON_THE_HOST):
        return backends
    if backends in _ON_THE_HOST:
        others = ", ".join(name for name in discovery.backend_names() if name not in _ON_THE_HOST)
        raise UsageError(f"gpu-layers: wanted a backend that drives a GPU ({others}); got {backends!r}")
    return f"{backends},cpu"


def layer_rules(gpu_layers: int, n_layers: int, backends: Sequence[str]) -> str:
    """Placement rules: the last `gpu_layers` layers on the first backend, the others on the second.

    Nodes before the first and after the last layer follow their neighbours. No rule is needed for all layers.
    """
    if gpu_layers < 0:
        raise UsageError(f"gpu-layers: wanted a whole number of at least 0; got {gpu_layers}")
    first = n_layers - min(gpu_layers, n_layers)
    if first == 0:
        return ""
    rules = [f"{backends[1]}:layers.0-{first - 1}"]
    if first < n_layers:
        rules.append(f"{backends[0]}:layers.{first}-{n_layers - 1}")
    return ",".join(rules)


def layer_bytes(tensors: Mapping[str, Tensor]) -> tuple[list[int], int]:
    """Bytes of each layer's weights, and bytes of the weights that belong to no layer."""
    sizes: Counter[int] = Counter()
    others = 0
    for name, tensor in tensors.items():
        match = _LAYER.match(name)
        if match:
            sizes[int(match[1])] += tensor.n_bytes
        else:
            others += tensor.n_bytes
    return [sizes[i] for i in range(max(sizes, default=-1) + 1)], others


def layers_that_fit(layers: Sequence[int], others: int, room: int) -> int:
    """The number of last layers that fit in `room` bytes of a device with the weights of no layer."""
    left = room * _SHARE - others
    for count, size in enumerate(reversed(layers)):
        left -= size
        if left < 0:
            return count
    return len(layers)


def place_layers(tensors: Mapping[str, Tensor], device: Device, gpu_layers: int | None, place: str) -> str:
    """The placement rules of a model: those from `gpu_layers` or the free memory, then the user's own.

    Without any rule everything that the first backend can run goes to it.
    """
    if not isinstance(device, PartsDevice):
        return place
    layers, others = layer_bytes(tensors)
    names = list(device.devices)
    if gpu_layers is None:
        first = device.devices[names[0]]
        room = first.memory_bytes if isinstance(first, MemoryDevice) else None
        if place or room is None:
            return place
        gpu_layers = layers_that_fit(layers, others, room)
    return ",".join(filter(None, (layer_rules(gpu_layers, len(layers), names), place)))
