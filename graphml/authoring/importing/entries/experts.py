"""Mixture of experts: a router, the best experts of each token, their gated matrices and the weighted sum."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphml.authoring.importing.aten import sigmoid, softmax
from graphml.authoring.importing.entries.activations import KNOWN
from graphml.authoring.importing.entry import Entry
from graphml.authoring.importing.evaluation import op_name
from graphml.authoring.importing.region import Recognised, Region, run, same

Array = NDArray[Any]
T = 6
ACTIVATIONS = ("silu", "gelu", "gelu_erf", "relu")
LARGEST = 1 << 28  # numbers of the experts' matrices that are tried


def looks(region: Region) -> bool:
    """A choice of the largest, matrices by index, and rows of the same shape [.., T, D] at both ends."""
    return (
        {"topk", "index"} <= region.ops
        and isinstance(region.shape[-1], int)
        and region.shape[-1:] == region.shape_last[-1:]
        and sum(isinstance(one, str) for one in region.shape_last) == 1
        and "s" not in "".join(one for one in region.shape_last if isinstance(one, str) and "*" in one)
        and not region.others(lambda one: not region.dependence.kinds[one] <= {"parameters", "positions"})
    )


def matches(region: Region) -> Recognised | None:
    """Scores, whether weights sum to 1, activation and weights, if all of it agrees on random rows."""
    names = region.others(region.dependence.is_parameters)
    shapes = {name: _shape(region, name) for name in names}
    width = region.shape[-1]
    routers = [name for name, shape in shapes.items() if len(shape) == 2 and shape[1] == width]
    three = [name for name, shape in shapes.items() if len(shape) == 3]
    if (
        len(names) != 3
        or len(routers) != 1
        or len(three) != 2
        or any(np.prod(shapes[one]) > LARGEST for one in three)
    ):
        return None
    inner, outer = sorted(three, key=lambda name: shapes[name][1] == width)
    if shapes[inner][2] != width or shapes[outer][1] != width or shapes[inner][1] != 2 * shapes[outer][2]:
        return None
    used = next(int(node.args["k"]) for node in region.nodes if op_name(node) == "topk")
    x = region.random(T, 0)
    y = region.run(x, T).reshape(T, width)
    values = {name: run(region.dependence, {}, name, T) for name in names}
    rows = x.reshape(T, width)
    scores = rows @ values[routers[0]].T
    for gating, normalise, activation in product(("softmax", "sigmoid"), (True, False), ACTIVATIONS):
        chances = softmax(scores, -1) if gating == "softmax" else sigmoid(scores)
        wanted = _mixed(rows, chances, used, normalise, activation, values[inner], values[outer])
        if same(y, wanted, 1e-7):
            numbers = {
                "used": used,
                "sigmoid": gating == "sigmoid",
                "normalise": normalise,
                "activation": activation,
            }
            weights = {"router": routers[0], "gate_up": inner, "down": outer}
            return Recognised("experts", region.last, {"x": region.entry}, weights, numbers)
    return None


def _shape(region: Region, name: str) -> tuple[int, ...]:
    leaf = region.dependence.description.inputs.get(name)
    return leaf.shape if leaf else tuple(map(int, region.dependence.description.nodes[name].shape or ()))


def _mixed(
    x: Array, chances: Array, used: int, normalise: bool, activation: str, inner: Array, outer: Array
) -> Array:
    ids = np.argsort(-chances, axis=-1, kind="stable")[:, :used]
    weights = np.take_along_axis(chances, ids, -1)
    if normalise:
        weights = weights / weights.sum(-1, keepdims=True)
    both = np.einsum("tufd,td->tuf", inner[ids], x)
    half = both.shape[-1] // 2
    hidden = KNOWN[activation](both[..., :half]) * both[..., half:]
    found: Array = np.einsum("tudf,tuf,tu->td", outer[ids], hidden, weights)
    return found


ENTRY = Entry("experts", looks, matches)
