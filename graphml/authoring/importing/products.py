"""Products of a value of tokens and a parameter, in whatever order their dimensions are, as a matrix product.

Knows single nodes; nothing of attention or layers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from graphml.authoring.importing.description import TracedNode
from graphml.authoring.importing.evaluation import op_name
from graphml.authoring.importing.expressions import View, Weight, whole
from graphml.authoring.importing.walked import Walked

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
    if not walk.is_walked(names[0]) or walk.is_walked(names[1]):
        both = all(map(walk.is_walked, names))
        raise ValueError(
            "a product of two values of tokens" if both else "a parameter times a value of tokens"
        )
    if args.get("beta", 1) != 1 or args.get("alpha", 1) != 1:
        raise ValueError("a product with factors")
    weight = walk.weight(names[1], is_transposed)
    if len(weight.shape) != 2:
        raise ValueError(f"a product with a parameter of shape {list(weight.shape)}")
    view = walk.view(names[0])
    rest = [size for size in view.elements.shape[:-1] if size != 1]
    x = walk.select.taken(view, (*rest, view.elements.shape[-1]))
    weights = {"weight": weight}
    if bias and args.get(bias) is not None:
        weights["bias"] = walk.weight(args[bias]["node"])
    return walk.made(node, "linear", (x,), (*rest, weight.shape[0]), weights)


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
        raise ValueError("a product of two values of tokens")
    shared = [each for each in letters.first if each in letters.second and each in letters.result]
    if shared or not letters.summed:
        raise ValueError("a product with a matrix for each part of a value, or a sum over no dimension")
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
