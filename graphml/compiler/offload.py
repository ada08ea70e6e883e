"""Layer offload: puts as many layers on the GPU as the user asks for, else as many as fit in its memory.

Devices on other machines get layers in order, each by its memory.

Knows names of tensors, layers and backends; nothing of graphs.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Mapping, Sequence

from graphml.backend import Device, MemoryDevice, RemoteDevice
from graphml.compiler.multi_device import PartsDevice
from graphml.errors import UsageError
from graphml.loading import discovery
from graphml.loading.architecture import EMBEDDING
from graphml.weights import Tensor

_LAYER = re.compile(r"blk\.(\d+)\.")
_ON_THE_HOST = ("cpu", "reference")
# Memory reserved for programs, the key-value cache, and other users of the device.
_SHARE = 0.8
_BISECTIONS = 40  # until no layer's size is in between


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


def stage_counts(layers: Sequence[int], first: int, last: int, rooms: Sequence[int]) -> list[int] | None:
    """How many layers each of several stages has, at least one, in order; None where they do not fit.

    Sizes in bytes. first, last: of the weights before and after all layers. Stages are filled alike: the part
    of its room that the fullest one uses is the least possible.
    """

    def filled(share: float) -> list[int] | None:
        counts, at = list[int](), 0
        for i, room in enumerate(rooms):
            others = len(rooms) - 1 - i
            left = room * share - (first if i == 0 else 0) - (last if others == 0 else 0)
            begin = at
            while at < len(layers) - others and layers[at] <= left:
                left -= layers[at]
                at += 1
            counts.append(at - begin)
        return counts if at == len(layers) and min(counts) > 0 else None

    counts, low, high = filled(_SHARE), 0.0, _SHARE
    for _ in range(_BISECTIONS if counts is not None else 0):
        middle = (low + high) / 2
        fuller = filled(middle)
        counts, low, high = (counts, middle, high) if fuller is None else (fuller, low, middle)
    return counts


def stage_rules(tensors: Mapping[str, Tensor], stages: Mapping[str, RemoteDevice]) -> str:
    """Placement rules for stages by name, each with consecutive layers; UsageError where they do not fit."""
    layers, others = layer_bytes(tensors)
    last = sum(tensor.n_bytes for name, tensor in tensors.items() if name.startswith("output"))
    if "output.weight" not in tensors and EMBEDDING in tensors:  # the last stage has a copy of it
        last, others = last + tensors[EMBEDDING].n_bytes, others + tensors[EMBEDDING].n_bytes
    rooms = [stage.memory_bytes for stage in stages.values()]
    counts = stage_counts(layers, others - last, last, rooms)
    if counts is None:
        had = ", ".join(f"{name} {stage.memory_bytes:,} on {stage.machine}" for name, stage in stages.items())
        raise UsageError(
            f"backend: wanted room for {sum(layers) + others:,} bytes of weights, {len(layers)} layers of up "
            f"to {max(layers):,} and {others - last:,} before and {last:,} behind them, each stage with a "
            f"layer or more in {_SHARE:.0%} of its machine's free bytes; got {had}"
        )
    ends = list(itertools.accumulate(counts))
    spans = zip(stages, counts, ends, strict=True)
    return ",".join(f"{name}:layers.{end - count}-{end - 1}" for name, count, end in spans)


def place_layers(tensors: Mapping[str, Tensor], device: Device, gpu_layers: int | None, place: str) -> str:
    """The placement rules of a model: those from `gpu_layers` or the free memory, then the user's own.

    Without any rule everything that the first backend can run goes to it; stages divide the layers.
    """
    if not isinstance(device, PartsDevice):
        return place
    layers, others = layer_bytes(tensors)
    names = list(device.devices)
    stages = {name: stage for name, stage in device.devices.items() if isinstance(stage, RemoteDevice)}
    if gpu_layers is None and not place and layers and len(stages) == len(names):
        return stage_rules(tensors, stages)
    if gpu_layers is None:
        first = device.devices[names[0]]
        room = first.memory_bytes if isinstance(first, MemoryDevice) else None
        if place or room is None:
            return place
        gpu_layers = layers_that_fit(layers, others, room)
    return ",".join(filter(None, (layer_rules(gpu_layers, len(layers), names), place)))
