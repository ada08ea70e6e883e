"""Products of a value of tokens and a parameter, in whatever order their dimensions are, as a matrix product.

Knows single nodes; nothing of attention or layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from graphml.authoring.importing.description import TracedNode
from graphml.authoring.importing.evaluation import op_name
from graphml.authoring.importing.expressions import Expression, T, View, Weight, whole
from graphml.authoring.importing.walked import Walked

BETWEEN_TOKENS = ("matmul", "bmm", "einsum")  # ops whose result may have a number for each pair of tokens
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def product(walk: Walked, node: TracedNode) -> View:
    """A value of tokens times a matrix of parameters."""
    name, args = op_name(node), node.args
    left, right, bias, is_transposed = {
        "linear": ("input", "weight", "bias", False),
        "addmm": ("mat1", "mat2", "self", True),
        "mm": ("self", "mat2", "", True),
        "matmul": ("self", "other", "", True),
        "bmm": ("self", "mat2", "", True),
    }[name]
    names = [args[left]["node"], args[right]["node"]]
    if args.get("beta", 1) != 1 or args.get("alpha", 1) != 1:
        raise ValueError("a product with factors")
    if all(map(walk.is_walked, names)):
        if bias or not is_transposed:
            raise ValueError("a product of two values of tokens, with a bias or a matrix that is transposed")
        first, second = (walk.view(each) for each in names)
        turned = View(second.of, np.swapaxes(second.codes, -1, -2))
        return walk.laid(node, of_each_token(walk, node, first, turned))
    if not walk.is_walked(names[0]):
        return _parameter_first(walk, node, names)
    weight = walk.weight(names[1], is_transposed)
    if len(weight.shape) == 3 and not bias and is_transposed:
        letters = LETTERS[: len(walk.shape_of(names[0])) - 3]
        return _by_parts(walk, node, Einsum(f"{letters}gmk", "gkn", f"{letters}gmn"), names)
    if len(weight.shape) != 2:
        raise ValueError(f"a product with a parameter of shape {list(weight.shape)}")
    view = walk.view(names[0])
    rest = [size for size in view.elements.shape[:-1] if size != 1]
    x = walk.select.taken(view, (*rest, view.elements.shape[-1]))
    weights = {"weight": weight}
    if bias and args.get(bias) is not None:
        weights["bias"] = walk.weight(args[bias]["node"])
    return walk.made(node, "linear", (x,), (*rest, weight.shape[0]), weights)


def product_of_parts(walk: Walked, node: TracedNode) -> View:
    """A product with a matrix for each part, and a bias [G, 1, N]."""
    names = [node.args[role]["node"] for role in ("batch1", "batch2")]
    if not walk.is_walked(names[0]) or node.args.get("beta", 1) != 1 or node.args.get("alpha", 1) != 1:
        raise ValueError("a product of parts with factors, or of parameters")
    view = _by_parts(walk, node, Einsum("gmk", "gkn", "gmn"), names)
    bias = walk.weight(node.args["self"]["node"])
    x = walk.select.taken(view)
    if tuple(size for size in bias.shape if size != 1) != x.shape:
        raise ValueError("a product of parts with a bias of another shape")
    return walk.made(node, "add", (x,), x.shape, {"weight": Weight(bias.source, x.shape)})


def _parameter_first(walk: Walked, node: TracedNode, names: list[str]) -> View:
    """A matrix of parameters [N, K] times a value [.., K, T]: [.., N, T]."""
    weight, view = walk.weight(names[0]), walk.view(names[1])
    shape = tuple(size for size in weight.shape if size != 1)
    if op_name(node) not in ("mm", "matmul", "bmm") or len(shape) != 2 or view.axis != view.codes.ndim - 1:
        raise ValueError("a parameter times a value of tokens, which are not its columns")
    if view.elements.size != shape[1]:
        raise ValueError("a parameter times several values of each token")
    x = walk.select.taken(view, (shape[1],))
    return walk.made(node, "linear", (x,), shape[:1], {"weight": Weight(weight.source, shape)})


def of_each_token(walk: Walked, node: TracedNode, x: View, weight: View) -> Expression:
    """The product of two matrices of each token: x [.., M, K] and weight [.., N, K] -> [.., M, N]."""
    places = {side.axis - side.codes.ndim if side.axis is not None else 0 for side in (x, weight)}
    if len(places) > 1 or max(places) > -3 or x.codes.ndim != weight.codes.ndim:
        raise ValueError("a product of two values of tokens")
    sides = [np.moveaxis(side.codes, side.axis or 0, 0) for side in (x, weight)]
    lead = np.broadcast_shapes(*(codes.shape[1:-2] for codes in sides))
    taken = []
    for side, codes in zip((x, weight), sides, strict=True):
        wide = np.broadcast_to(codes, (T, *lead, *codes.shape[-2:]))
        rest = [size for size in lead if size != 1]
        taken.append(walk.select.taken(View(side.of, wide), (*rest, *codes.shape[-2:])))
    (*rest, m, _), (*_, n, _) = taken[0].shape, taken[1].shape
    return walk.expression(node, "mul_mat", (taken[1], taken[0]), (*rest, m, n))


@dataclass(frozen=True)
class Einsum:
    """The letters of two operands and of the result."""

    first: str
    second: str
    result: str

    @property
    def summed(self) -> str:
        """Letters of both operands that the result has not."""
        return "".join(letter for letter in self.first if letter in self.second and letter not in self.result)

    @property
    def turned(self) -> Einsum:
        """With its operands exchanged."""
        return Einsum(self.second, self.first, self.result)


def in_order(view: View, letters: str, lead: Sequence[str], last: Sequence[str]) -> View:
    """A value with its dimensions in the order of `lead` and `last`, 1 for those of `lead` without one."""
    order = [letters.index(each) for each in (*lead, *last) if each in letters]
    codes = np.transpose(view.codes, order)
    for i, each in enumerate(lead):
        codes = codes if each in letters else np.expand_dims(codes, i)
    return View(view.of, codes)


def einsum_of(walk: Walked, node: TracedNode) -> tuple[Einsum, list[str]]:
    """The letters of an einsum of two operands, and their names; ValueError for another."""
    names = [tensor["node"] for tensor in node.args["tensors"]]
    text = node.args["equation"]
    equation = (text["text"] if isinstance(text, dict) else text).replace(" ", "")
    if len(names) != 2 or "->" not in equation:
        raise ValueError(f"einsum {equation!r}: wanted two operands and a result")
    operands, result = equation.split("->")
    first, second = operands.split(",")
    for letters, name in ((first, names[0]), (second, names[1])):
        if "..." in letters:
            count = len(walk.shape_of(name)) - len(letters) + 3
            first, second, result = (each.replace("...", LETTERS[:count]) for each in (first, second, result))
    summed_alone = (set(first) ^ set(second)) - set(result)
    if any(len(set(each)) != len(each) for each in (first, second, result)) or summed_alone:
        raise ValueError(f"einsum {equation!r}: wanted sums over dimensions of both operands alone")
    return Einsum(first, second, result), names


def einsum(walk: Walked, node: TracedNode) -> View:
    """A value of tokens and a parameter that share dimensions which the result has not."""
    letters, names = einsum_of(walk, node)
    if not walk.is_walked(names[0]):
        letters, names = letters.turned, names[::-1]
    if walk.is_walked(names[1]):
        return _einsum_of_each_token(walk, node, letters, names)
    shared = [each for each in letters.first if each in letters.second and each in letters.result]
    if not letters.summed:
        raise ValueError("a product that sums over no dimension")
    if shared:
        return _by_parts(walk, node, letters, names)
    view, free = walk.view(names[0]), [each for each in letters.first if each not in letters.summed]
    codes = np.transpose(view.codes, [letters.first.index(each) for each in (*free, *letters.summed)])
    ordered = View(view.of, codes)
    count = len(letters.summed)
    inner = int(np.prod(codes.shape[-count:]))
    rest = [size for size in ordered.elements.shape[:-count] if size != 1]
    x = walk.select.taken(ordered, (*rest, inner))
    out = [each for each in letters.second if each not in letters.summed]
    order = tuple(letters.second.index(each) for each in (*out, *letters.summed))
    sizes = dict(zip(letters.second, np.shape(walk.plain.value(names[1])), strict=True))
    rows = int(np.prod([sizes[each] for each in out]))
    weight = Weight(walk.weight(names[1]).source, (rows, inner), order)
    y = walk.expression(node, "linear", (x,), (*rest, rows), {"weight": weight})
    natural = (*codes.shape[:-count], *(sizes[each] for each in out))
    laid = whole(y, natural, ordered.axis or 0)
    return View(y, np.transpose(laid.codes, [[*free, *out].index(each) for each in letters.result]))


def _by_parts(walk: Walked, node: TracedNode, letters: Einsum, names: list[str]) -> View:
    """Each part of a value times a matrix of its own, [G, N, K]."""
    view = walk.view(names[0])
    shared = [each for each in letters.first if each in letters.second and each in letters.result]
    sizes = dict(zip(letters.first, view.codes.shape, strict=True))
    sizes |= dict(zip(letters.second, np.shape(walk.plain.value(names[1])), strict=True))
    out = [each for each in letters.second if each not in letters.summed and each not in shared]
    rest = [each for each in letters.first if each not in letters.second]
    tokens = [each for each in rest if letters.first.index(each) == view.axis]
    if len(tokens) != 1 or any(sizes[each] != 1 for each in rest if each not in tokens):
        raise ValueError("a product of several rows with a matrix for each part of a value")
    order = [*rest, *shared, *letters.summed]
    codes = np.transpose(view.codes, [letters.first.index(each) for each in order])
    count, rows, inner = (
        int(np.prod([sizes[each] for each in each_of])) for each_of in (shared, out, letters.summed)
    )
    x = walk.select.taken(View(view.of, codes), (count, inner))
    places = tuple(letters.second.index(each) for each in (*shared, *out, *letters.summed))
    weight = Weight(walk.weight(names[1]).source, (count, rows, inner), places)
    y = walk.expression(node, "per_head", (x,), (count, rows), {"weight": weight})
    natural = [*rest, *shared, *out]
    laid = whole(y, tuple(sizes[each] for each in natural), natural.index(tokens[0]))
    return View(y, np.transpose(laid.codes, [natural.index(each) for each in letters.result]))


def _einsum_of_each_token(walk: Walked, node: TracedNode, letters: Einsum, names: list[str]) -> View:
    """An einsum of two values of tokens, whose tokens are the same letter."""
    views = [walk.view(name) for name in names]
    sides = (letters.first, letters.second)
    tokens = {side[view.axis] for side, view in zip(sides, views, strict=True) if view.axis is not None}
    lead = [each for each in letters.first if each in letters.second and each in letters.result]
    if len(tokens) != 1 or not tokens <= set(lead):
        raise ValueError("a product of two values of tokens")
    own = [[each for each in side if each not in lead and each not in letters.summed] for side in sides]
    matrices = []
    for side, view, free in zip(sides, views, own, strict=True):
        codes = np.transpose(view.codes, [side.index(each) for each in (*lead, *free, *letters.summed)])
        shape = [int(np.prod([codes.shape[len(lead) + i] for i in range(len(free))]))]
        matrices.append(View(view.of, codes.reshape(*codes.shape[: len(lead)], *shape, -1)))
    x, weight = matrices
    y = of_each_token(walk, node, x, weight)
    sizes = {each: size for side, view in zip(sides, views, strict=True)
             for each, size in zip(side, view.codes.shape, strict=True)}  # fmt: skip
    natural = [*lead, *own[0], *own[1]]
    laid = whole(y, tuple(sizes[each] for each in natural), natural.index(next(iter(tokens))))
    return View(y, np.transpose(laid.codes, [natural.index(each) for each in letters.result]))
