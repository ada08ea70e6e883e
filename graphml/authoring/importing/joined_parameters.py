"""Parameters that a checkpoint holds in parts, one behind the other, as joins of these parts.

transformers joins them while it reads the checkpoint: one convolution of queries, keys and values. Knows a
description and a checkpoint's tensors; nothing of models.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphml.authoring.importing.description import TracedInput, TracedModule, TracedNode

Array = NDArray[Any]
MOST_PARTS = 8
_LAYER = re.compile(r".*?\.\d+\.")  # of a tensor's name, to its layer's number


def joined_parameters(description: TracedModule, held: Mapping[str, Callable[[], Array]]) -> TracedModule:
    """The description with each such parameter as a node that joins its parts."""
    inputs: dict[str, TracedInput] = {}
    joins: dict[str, TracedNode] = {}
    claimed = {leaf.name for leaf in description.inputs.values()}
    for name, leaf in description.inputs.items():
        value = (
            description.values.get(leaf.name) if leaf.kind == "parameter" and leaf.name not in held else None
        )
        layer = _LAYER.match(leaf.name)
        free = [each for each in held if layer and each.startswith(layer[0]) and each not in claimed]
        parts = [] if value is None or value.ndim < 2 else _parts(value, free, held)
        if len(parts) < 2:
            inputs[name] = leaf
            continue
        for i, part in enumerate(parts):
            inputs[f"{name}_{i}"] = TracedInput("parameter", part, tuple(held[part]().shape))
        args = {"tensors": [{"node": f"{name}_{i}"} for i in range(len(parts))], "dim": 0}
        joins[name] = TracedNode(name, "aten.cat.default", args, leaf.shape, "float32", leaf.name, "", "")
    return replace(description, inputs=inputs, nodes={**joins, **description.nodes}) if joins else description


def _parts(value: Array, free: list[str], held: Mapping[str, Callable[[], Array]]) -> list[str]:
    """The tensors that a value consists of, in order; none where some of it is in no tensor."""
    parts: list[str] = []
    start = 0
    while start < len(value) and len(parts) < MOST_PARTS:
        for name in free:
            part = held[name]() if name not in parts else value[:0]
            if len(part) and np.array_equal(value[start : start + len(part)], part):
                parts.append(name)
                start += len(part)
                break
        else:
            return []
    return parts if start == len(value) else []
