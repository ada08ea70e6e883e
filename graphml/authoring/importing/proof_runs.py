"""Runs of the traced module for the proof: of its first layers alone, and with one token that is changed.

Knows the traced graph and its layers; nothing of files or graphml's own runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphml.authoring.importing.description import TracedNode
from graphml.authoring.importing.evaluation import Evaluator, random_parameter
from graphml.authoring.importing.expressions import Expression
from graphml.authoring.importing.importing import Imported
from graphml.errors import ArchitectureError

Array = NDArray[Any]


def first_layers(imported: Imported, largest: int) -> tuple[Imported | None, str]:
    """The model's first layers, with no more parameters than `largest`; and what is left out, as text.

    None if there would be no layer of each kind.
    """
    layered = imported.layers
    ends = sum(map(_parameters, (layered.before, layered.after)))
    sizes = np.cumsum([ends, *map(_parameters, layered.layers)])
    total, count = len(layered.layers), int(np.count_nonzero(sizes <= largest)) - 1
    if count >= total:
        return imported, ""
    if count <= max(layered.firsts):
        return None, (
            f"no layer was compared with random parameters: {sizes[max(layered.firsts) + 1]} numbers, of a "
            f"layer of each kind, are more than {largest}"
        )
    keys = {
        key: value[:count] if isinstance(value, list) and len(value) == total else value
        for key, value in imported.keys.items()
    }
    layers = replace(layered, layers=layered.layers[:count], kinds=layered.kinds[:count])
    shortened = (
        f"layers {count} to {total - 1} were not compared with random parameters: more than {largest} numbers"
    )
    return replace(imported, layers=layers, keys=keys | {"block_count": count}), shortened


def _parameters(of: Sequence[Expression]) -> int:
    return sum(int(np.prod(weight.shape)) for expr in of for weight in expr.weights.values())


def evaluator_of(imported: Imported, ids: Array, values: dict[str, Any] | None = None) -> Evaluator:
    """The traced module on ids with random parameters; what is after the layers follows the last one kept."""
    description = imported.dependence.description
    leaves = {name: ids[None] for name, leaf in description.inputs.items() if leaf.kind == "ids"}
    evaluator = Evaluator(description, {**leaves, **(values or {})}, random_parameter)
    last, kept = (imported.made_by[id(expr)] for expr in (imported.last, imported.layers.leaving(-1)))
    if last.name != kept.name:
        evaluator.held[last.name] = evaluator.value(kept.name)
    return evaluator


def tokens_alone(imported: Imported, ids: Array) -> float:
    """How much a token changes others if attention's outputs are given: 0.

    One token and its rows of these outputs are changed; ArchitectureError names the first op in which
    another token's values change.
    """
    changed = ids.copy()
    at = len(ids) // 2
    changed[at] = (ids[at] + 1) % imported.layers.result.shape[-1]
    nodes = imported.dependence.description.nodes
    outputs = [name for name, recognised in imported.recognised.items() if recognised.op == "attend"]
    runs = []
    for tokens in (ids, changed):
        entries = {}
        for i, name in enumerate(outputs):
            axis = _axis(nodes[name])
            shape = [len(ids) if isinstance(size, str) else size for size in nodes[name].shape or ()]
            values = np.moveaxis(np.random.default_rng(i).standard_normal(shape), axis or 0, 0)
            if tokens is changed:
                values[at] += 1.0
            entries[name] = np.moveaxis(values, 0, axis or 0)
        runs.append(evaluator_of(imported, tokens, entries))
        runs[-1].value(imported.dependence.description.result)
    for node in imported.dependence.needed:
        axis = _axis(node)
        if axis is None or any(node.name not in run.held for run in runs):
            continue
        a, b = (np.delete(np.asarray(run.held[node.name]), at, axis) for run in runs)
        if not np.array_equal(a, b):
            raise ArchitectureError(
                f"{node.told}: mixes tokens: with attention's outputs given, it changes with another token"
            )
    return 0.0


def _axis(node: TracedNode) -> int | None:
    """The dimension of the tokens, where it is one that counts nothing else."""
    axes = [i for i, size in enumerate(node.shape or ()) if isinstance(size, str)]
    return axes[0] if len(axes) == 1 and str((node.shape or ())[axes[0]]).isidentifier() else None
