"""Mixture of experts: a router, the best experts of each token, their gated matrices and the weighted sum."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import permutations, product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphml.authoring.importing.entries.activations import KNOWN
from graphml.authoring.importing.evaluation import op_name
from graphml.authoring.importing.functions import sigmoid, softmax
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
        and region.shape[-1:] != ()
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
    three = [name for name, shape in shapes.items() if len(shape) == 3]
    if len(three) not in (2, 3):
        return None
    count = shapes[three[0]][0]
    vectors = [name for name, shape in shapes.items() if np.prod(shape) == max(shape) == count]
    tables = [name for name, shape in shapes.items() if len(shape) == 2 and name not in vectors]
    if len(names) != len(three) + len(tables) + len(vectors[:2]) or len(tables) not in (1, len(three) + 1):
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
    for roles, (router, matrices) in product(
        permutations(("bias", "router_bias"), len(vectors)),
        list(_tensors(three, tables, shapes, width, count)),
    ):
        of_role = dict(zip(roles, vectors, strict=True))
        bias, added = (
            values[of_role[role]].reshape(-1) if role in of_role else 0.0 for role in ("bias", "router_bias")
        )
        tensors = matrices.arrays(values)
        for routing, activation in product(_routings(region, "bias" in of_role), _products(region)):
            scores = rows @ values[router].T
            wanted = _mixed(rows, *routing.chosen(scores + added, bias), routing.before, activation, tensors)
            scale = float(f"{float(np.vdot(wanted, y) / np.vdot(wanted, wanted)):.6g}")
            if not same(y.reshape(T, width), scale * wanted, LIMIT):
                continue
            chosen = routing.chosen(LARGE * scores + added, bias)
            wanted = scale * _mixed(LARGE * rows, *chosen, routing.before, activation, tensors)
            divided = routing.weighed(LARGE * scores + added, bias) > LEAST
            if divided.any() and same(
                region.run(LARGE * x, T).reshape(T, width)[divided], wanted[divided], LIMIT
            ):
                weights = {"router": router, **matrices.names, **of_role}
                numbers = {**vars(routing), "scale": scale, "activation": activation.name,
                           "limit": activation.limit, "transposed": matrices.transposed,
                           "in_turns": matrices.in_turns}  # fmt: skip
                return Recognised("experts", region.last, {"x": region.entry}, weights, numbers)
    return None


@dataclass(frozen=True)
class _Product:
    """What becomes of gates and what they let through. limit: see `printing.PRODUCTS`; 0 for none."""

    name: str
    limit: float = 0.0

    def __call__(self, gate: Array, up: Array) -> Array:
        if self.limit:
            gate, up = np.minimum(gate, self.limit), np.clip(up, -self.limit, self.limit)
        if self.name == "gelu_quick":
            up = up + 1.0
        return KNOWN[self.name](gate) * up


def _products(region: Region) -> list[_Product]:
    """All that the region's limits allow."""
    clamps = [node for node in region.nodes if op_name(node) in ("clamp", "clamp_max")]
    limits = {float(node.args["max"]) for node in clamps if isinstance(node.args.get("max"), int | float)}
    named = [_Product(name) for name in ACTIVATIONS]
    return [*named, *(_Product(name, limit) for limit in limits for name in ("silu", "gelu_quick"))]


@dataclass(frozen=True)
class _Tensors:
    """Gates and, behind them, what they are multiplied with, [E, 2 * F, D]; outputs [E, D, F]; biases."""

    inner: Array
    outer: Array
    inner_bias: Array | float
    outer_bias: Array | float


@dataclass(frozen=True)
class _Matrices:
    """Which tensor is which, by role; transposed: the roles of those that are [experts, in, out].

    in_turns: whether gates and what they let through take turns.
    """

    names: dict[str, str]
    transposed: tuple[str, ...]
    in_turns: bool = False

    def _value(self, role: str, values: dict[str, Array]) -> Array:
        value = values[self.names[role]]
        return np.swapaxes(value, 1, 2) if role in self.transposed else value

    def arrays(self, values: dict[str, Array]) -> _Tensors:
        """The tensors in one order."""
        biases: list[Array | float] = [0.0, 0.0]
        if "gate_up" in self.names:
            inner = self._in_order(self._value("gate_up", values))
        else:
            inner = np.concatenate([self._value(role, values) for role in ("gate", "up")], 1)
        if "down_bias" in self.names:
            parts = [values[self.names[role]] for role in ("gate_up_bias", "gate_bias", "up_bias")
                     if role in self.names]  # fmt: skip
            biases = [self._in_order(np.concatenate(parts, 1)), values[self.names["down_bias"]]]
        return _Tensors(inner, self._value("down", values), *biases)

    def _in_order(self, of_both: Array) -> Array:
        if not self.in_turns:
            return of_both
        return np.concatenate([of_both[:, 0::2], of_both[:, 1::2]], 1)


def _tensors(
    three: list[str], tables: list[str], shapes: dict[str, tuple[int, ...]], width: int, count: int
) -> Iterator[tuple[str, _Matrices]]:
    """The router and the matrices, with their biases: all that the shapes allow."""
    for router in (name for name in tables if shapes[name] == (count, width)):
        for matrices in _matrices(three, shapes, width, count):
            turns = (False, True) if "gate_up" in matrices.names else (False,)
            rest = [name for name in tables if name != router]
            for biases, in_turns in product(permutations(rest), turns):
                roles = [f"{role}_bias" for role in matrices.names] if rest else []
                names = matrices.names | dict(zip(roles, biases, strict=True))
                hidden = shapes[matrices.names["down"]][1 if "down" in matrices.transposed else 2]
                sizes = {"gate_up_bias": 2 * hidden, "down_bias": width}
                if all(shapes[names[role]] == (count, sizes.get(role, hidden)) for role in roles):
                    yield router, _Matrices(names, matrices.transposed, in_turns)


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
    """How scores become experts and weights; see `graphml_models._routing.Routing`.

    of_scores: whether the bias is added to scores, and not to shares; before: whether what goes into an
    expert is weighed, and not what comes out.
    """

    used: int
    sigmoid: bool
    normalise: bool
    groups: tuple[int, int]
    of_scores: bool = False
    before: bool = False

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
        choice = (scores if self.of_scores else chances) + bias
        count, kept = self.groups
        if count > 1:
            parts = choice.reshape(len(choice), count, -1)
            best = np.sort(parts, -1)[..., -2:].sum(-1)
            limit = np.sort(best, -1)[:, -kept][:, None]
            choice = np.where((best >= limit)[..., None], parts, -np.inf).reshape(choice.shape)
        ids = np.argsort(-choice, axis=-1, kind="stable")[:, : self.used]
        return ids, np.take_along_axis(chances, ids, -1)


def _routings(region: Region, biased: bool) -> list[_Routing]:
    """All that the numbers of the region's choices allow."""
    tops = [node for node in region.nodes if op_name(node) == "topk"]
    groups = (0, 0)
    if len(tops) == 3:
        of = region.dependence.description.nodes[tops[0].operands[0]].shape or ()
        groups = (of[-2] if isinstance(of[-2], int) else 0, int(tops[1].args["k"]))
    elif len(tops) != 1:
        return []
    used = int(tops[-1].args["k"])
    plain = [_Routing(used, *choices, groups) for choices in product((False, True), (True, False))]
    plain += [replace(routing, of_scores=True) for routing in plain if biased or routing.sigmoid]
    return [*plain, *(replace(routing, before=True) for routing in plain if not routing.normalise)]


def _shape(region: Region, name: str) -> tuple[int, ...]:
    leaf = region.dependence.description.inputs.get(name)
    return leaf.shape if leaf else tuple(map(int, region.dependence.description.nodes[name].shape or ()))


def _mixed(
    x: Array, ids: Array, weights: Array, before: bool, activation: _Product, tensors: _Tensors
) -> Array:
    inner, outer = tensors.inner[ids], tensors.outer[ids]
    inner_bias, outer_bias = (
        bias if isinstance(bias, float) else bias[ids] for bias in (tensors.inner_bias, tensors.outer_bias)
    )
    both = np.einsum("tufd,td->tuf", inner, x)
    both = (both * weights[..., None] if before else both) + inner_bias
    half = both.shape[-1] // 2
    hidden = activation(both[..., :half], both[..., half:])
    out = np.einsum("tudf,tuf->tud", outer, hidden) + outer_bias
    mixed: Array = (out if before else out * weights[..., None]).sum(1)
    return mixed


ENTRY = CatalogueEntry("experts", looks, matches)
