"""Mixture of experts: a router, the best experts of each token, their gated matrices and the weighted sum."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphml.authoring.importing.aten import sigmoid, softmax
from graphml.authoring.importing.entries.activations import KNOWN
from graphml.authoring.importing.evaluation import op_name
from graphml.authoring.importing.region import CatalogueEntry, Recognised, Region, run, same
from graphml.errors import ArchitectureError

Array = NDArray[Any]
T = 6
ACTIVATIONS = ("silu", "gelu", "gelu_erf", "relu")
LIMIT = 1e-5  # what is added to a sum of weights, against division by 0, is not seen
LARGEST = 1 << 28  # numbers of the experts' matrices that are tried


def looks(region: Region) -> bool:
    """A choice of the largest, matrices by index, and rows of the same shape [.., T, D] at both ends."""
    return (
        {"topk", "index"} <= region.ops
        and isinstance(region.shape[-1], int)
        and region.shape[-1:] == region.shape_last[-1:]
        and sum(isinstance(size, str) for size in region.shape_last) == 1
        and "s" not in "".join(size for size in region.shape_last if isinstance(size, str) and "*" in size)
        and not region.others(lambda name: not region.dependence.kinds[name] <= {"parameters", "positions"})
    )


def matches(region: Region) -> Recognised | None:
    """Scores, choice, weights and activation, if all of it agrees on random rows."""
    names = region.others(region.dependence.is_parameters)
    shapes = {name: _shape(region, name) for name in names}
    width = region.shape[-1]
    routers = [name for name, shape in shapes.items() if len(shape) == 2 and shape[1] == width]
    three = [name for name, shape in shapes.items() if len(shape) == 3]
    count = shapes[routers[0]][0] if routers else 0
    biases = [name for name, shape in shapes.items() if np.prod(shape) == max(shape) == count]
    if len(routers) != 1 or len(three) != 2 or len(biases) > 1 or len(names) != 3 + len(biases):
        return None
    if any(np.prod(shapes[name]) > LARGEST for name in three):
        raise ArchitectureError(
            f"{region.nodes[-1].told}: experts of more than {LARGEST} numbers a layer: import a smaller "
            "checkpoint of the class, whose file runs larger ones"
        )
    inner, outer = sorted(three, key=lambda name: shapes[name][1] == width)
    if shapes[inner][2] != width or shapes[outer][1] != width or shapes[inner][1] != 2 * shapes[outer][2]:
        return None
    x = region.random(T, 0)
    y = region.run(x, T)
    if y.size != T * int(width):
        return None
    rows = x.reshape(T, width)
    values = {name: run(region.dependence, {}, name, T) for name in names}
    bias = values[biases[0]].reshape(-1) if biases else 0.0
    for routing in _routings(region):
        chosen = routing.chosen(rows @ values[routers[0]].T, bias)
        for activation in ACTIVATIONS:
            wanted = _mixed(rows, *chosen, activation, values[inner], values[outer])
            scale = float(f"{float(np.vdot(wanted, y) / np.vdot(wanted, wanted)):.6g}")
            if same(y.reshape(T, width), scale * wanted, LIMIT):
                weights = {"router": routers[0], "gate_up": inner, "down": outer}
                weights |= {"bias": biases[0]} if biases else {}
                numbers = {**vars(routing), "scale": scale, "activation": activation}
                return Recognised("experts", region.last, {"x": region.entry}, weights, numbers)
    return None


@dataclass(frozen=True)
class _Routing:
    """How scores become experts and weights; see `graphml_models._routing.Routing`."""

    used: int
    sigmoid: bool
    normalise: bool
    groups: tuple[int, int]

    def chosen(self, scores: Array, bias: Array | float) -> tuple[Array, Array]:
        """The experts of each token, and their weights; the bias is for the choice alone."""
        chances = sigmoid(scores) if self.sigmoid else softmax(scores, -1)
        choice = chances + bias
        count, kept = self.groups
        if count > 1:
            parts = choice.reshape(len(choice), count, -1)
            best = np.sort(parts, -1)[..., -2:].sum(-1)
            limit = np.sort(best, -1)[:, -kept][:, None]
            choice = np.where((best >= limit)[..., None], parts, -np.inf).reshape(choice.shape)
        ids = np.argsort(-choice, axis=-1, kind="stable")[:, : self.used]
        weights = np.take_along_axis(chances, ids, -1)
        return ids, weights / weights.sum(-1, keepdims=True) if self.normalise else weights


def _routings(region: Region) -> list[_Routing]:
    """All that the numbers of the region's choices allow."""
    tops = [node for node in region.nodes if op_name(node) == "topk"]
    groups = (0, 0)
    if len(tops) == 3:
        of = region.dependence.description.nodes[tops[0].operands[0]].shape or ()
        groups = (of[-2] if isinstance(of[-2], int) else 0, int(tops[1].args["k"]))
    elif len(tops) != 1:
        return []
    used = int(tops[-1].args["k"])
    return [_Routing(used, *choices, groups) for choices in product((False, True), (True, False))]


def _shape(region: Region, name: str) -> tuple[int, ...]:
    leaf = region.dependence.description.inputs.get(name)
    return leaf.shape if leaf else tuple(map(int, region.dependence.description.nodes[name].shape or ()))


def _mixed(x: Array, ids: Array, weights: Array, activation: str, inner: Array, outer: Array) -> Array:
    both = np.einsum("tufd,td->tuf", inner[ids], x)
    half = both.shape[-1] // 2
    hidden = KNOWN[activation](both[..., :half]) * both[..., half:]
    mixed: Array = np.einsum("tudf,tuf,tu->td", outer[ids], hidden, weights)
    return mixed


ENTRY = CatalogueEntry("experts", looks, matches)
