"""Mixture of experts: a router, the best experts of each token, their gated matrices and the weighted sum."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations, product
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
LARGE = 100.0  # rows so large show limits of what is between the matrices
LIMIT = 1e-5  # what is added to a sum of weights, against division by 0, is not seen
LEAST = 1e-9  # of a sum of weights, at which it is not
LARGEST = 1 << 28  # numbers of the experts' matrices that are tried


def looks(region: Region) -> bool:
    """A choice of the largest, and rows of the same shape [.., T, D] at both ends."""
    return (
        "topk" in region.ops
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
    width = int(region.shape[-1])
    routers = [name for name, shape in shapes.items() if len(shape) == 2 and shape[1] == width]
    three = [name for name, shape in shapes.items() if len(shape) == 3]
    count = shapes[routers[0]][0] if routers else 0
    biases = [name for name, shape in shapes.items() if np.prod(shape) == max(shape) == count]
    if len(routers) != 1 or len(three) not in (2, 3) or len(names) != 1 + len(three) + len(biases[:2]):
        return None
    if any(np.prod(shapes[name]) > LARGEST for name in three):
        raise ArchitectureError(
            f"{region.nodes[-1].told}: experts of more than {LARGEST} numbers a layer: import a smaller "
            "checkpoint of the class, whose file runs larger ones"
        )
    x = region.random(T, 0)
    y = region.run(x, T)
    if y.size != T * width:
        return None
    rows = x.reshape(T, width)
    values = {name: run(region.dependence, {}, name, T) for name in names}
    for roles, matrices in product(
        permutations(("bias", "router_bias"), len(biases)), list(_matrices(three, shapes, width, count))
    ):
        of_role = dict(zip(roles, biases, strict=True))
        bias, added = (
            values[of_role[role]].reshape(-1) if role in of_role else 0.0 for role in ("bias", "router_bias")
        )
        inner, outer = matrices.inner(values), matrices.outer(values)
        for routing, activation in product(_routings(region), ACTIVATIONS):
            scores = rows @ values[routers[0]].T
            wanted = _mixed(rows, *routing.chosen(scores + added, bias), activation, inner, outer)
            scale = float(f"{float(np.vdot(wanted, y) / np.vdot(wanted, wanted)):.6g}")
            if not same(y.reshape(T, width), scale * wanted, LIMIT):
                continue
            chosen = routing.chosen(LARGE * scores + added, bias)
            wanted = scale * _mixed(LARGE * rows, *chosen, activation, inner, outer)
            divided = routing.weighed(LARGE * scores + added, bias) > LEAST
            if divided.any() and same(
                region.run(LARGE * x, T).reshape(T, width)[divided], wanted[divided], LIMIT
            ):
                weights = {"router": routers[0], **matrices.names, **of_role}
                numbers = {**vars(routing), "scale": scale, "activation": activation,
                           "transposed": matrices.transposed}  # fmt: skip
                return Recognised("experts", region.last, {"x": region.entry}, weights, numbers)
    return None


@dataclass(frozen=True)
class _Matrices:
    """Which tensor is which, by role; transposed: the roles of those that are [experts, in, out]."""

    names: dict[str, str]
    transposed: tuple[str, ...]

    def _value(self, role: str, values: dict[str, Array]) -> Array:
        value = values[self.names[role]]
        return np.swapaxes(value, 1, 2) if role in self.transposed else value

    def inner(self, values: dict[str, Array]) -> Array:
        """Gates and, behind them, what they are multiplied with: [experts, 2 * hidden, width]."""
        if "gate_up" in self.names:
            return self._value("gate_up", values)
        return np.concatenate([self._value(role, values) for role in ("gate", "up")], 1)

    def outer(self, values: dict[str, Array]) -> Array:
        """[experts, width, hidden]."""
        return self._value("down", values)


def _matrices(
    three: list[str], shapes: dict[str, tuple[int, ...]], width: int, count: int
) -> Iterator[_Matrices]:
    """All that the shapes allow."""
    roles = ("gate_up", "down") if len(three) == 2 else ("gate", "up", "down")
    for names in permutations(three):
        for turned in product((False, True), repeat=len(roles)):
            sizes = {}
            for role, name, is_turned in zip(roles, names, turned, strict=True):
                experts, out, inner = shapes[name]
                sizes[role] = (experts, inner, out) if is_turned else (experts, out, inner)
            hidden = sizes["down"][2]
            wanted = {
                role: (count, 2 * hidden if role == "gate_up" else hidden, width) for role in roles[:-1]
            }
            if sizes == {**wanted, "down": (count, width, hidden)}:
                turned_roles = tuple(role for role, is_turned in zip(roles, turned, strict=True) if is_turned)
                yield _Matrices(dict(zip(roles, names, strict=True)), turned_roles)


@dataclass(frozen=True)
class _Routing:
    """How scores become experts and weights; see `graphml_models._routing.Routing`."""

    used: int
    sigmoid: bool
    normalise: bool
    groups: tuple[int, int]

    def chosen(self, scores: Array, bias: Array | float) -> tuple[Array, Array]:
        """The experts of each token, and their weights; the bias is for the choice alone."""
        ids, weights = self._best(scores, bias)
        return ids, weights / weights.sum(-1, keepdims=True) if self.normalise else weights

    def weighed(self, scores: Array, bias: Array | float) -> Array:
        """The sum of the weights of each token, before they are divided by it."""
        total: Array = self._best(scores, bias)[1].sum(-1)
        return total

    def _best(self, scores: Array, bias: Array | float) -> tuple[Array, Array]:
        chances = sigmoid(scores) if self.sigmoid else softmax(scores, -1)
        choice = chances + bias
        count, kept = self.groups
        if count > 1:
            parts = choice.reshape(len(choice), count, -1)
            best = np.sort(parts, -1)[..., -2:].sum(-1)
            limit = np.sort(best, -1)[:, -kept][:, None]
            choice = np.where((best >= limit)[..., None], parts, -np.inf).reshape(choice.shape)
        ids = np.argsort(-choice, axis=-1, kind="stable")[:, : self.used]
        return ids, np.take_along_axis(chances, ids, -1)


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
