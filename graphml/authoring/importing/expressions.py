"""Expressions: what the imported file will compute, by graphml's ops; views: elements of one in some order.

A selector makes expressions of views: all elements, columns, or rows of the matrix that made them.

Knows shapes without tokens: a value [T, 4, 16] is of shape (4, 16). Nothing of torch's ops.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

T = 7  # tokens in the codes of views
Codes = NDArray[np.int64]


@dataclass(frozen=True)
class Weight:
    """A tensor that depends on parameters alone: a node or input, its dimensions in order, some of its rows.

    shape: as graphml stores it; order: of the source's dimensions, None as they are; rows: of the matrix
    after that, None for all.
    """

    source: str
    shape: tuple[int, ...]
    order: tuple[int, ...] | None = None
    rows: tuple[int, ...] | None = None


@dataclass(frozen=True, eq=False)
class Expression:
    """One op of graphml. shape: of the result without its first dimension, the tokens.

    path, told: module path, and op with source line, of the node that it comes from.
    """

    op: str
    inputs: tuple[Expression, ...] = field(repr=False)  # shared by others: as a text they have no end
    shape: tuple[int, ...]
    path: str
    told: str
    weights: Mapping[str, Weight] = field(default_factory=dict)
    numbers: Mapping[str, Any] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Elements of a token."""
        return int(np.prod(self.shape))


@dataclass(frozen=True, eq=False)
class View:
    """Elements of an expression. codes: token * size + element for T tokens, in the traced value's shape."""

    of: Expression
    codes: Codes

    @property
    def axis(self) -> int | None:
        """The dimension of the tokens; None if they are nowhere in order."""
        token = self.codes // self.of.size
        for axis, extent in enumerate(self.codes.shape):
            if extent == T:
                wanted = np.arange(T).reshape([T if i == axis else 1 for i in range(self.codes.ndim)])
                if np.array_equal(token, np.broadcast_to(wanted, token.shape)):
                    return axis
        return None

    @property
    def elements(self) -> Codes:
        """The elements of each token, in the shape without the tokens; ValueError if tokens are mixed."""
        axis = self.axis
        if axis is None:
            raise ValueError("its tokens are no dimension of their own")
        elements = np.moveaxis(self.codes % self.of.size, axis, 0)
        if not np.array_equal(elements, np.broadcast_to(elements[:1], elements.shape)):
            raise ValueError("it takes other elements of each token")
        codes: Codes = elements[0]
        return codes


def whole(of: Expression, shape: tuple[int, ...], axis: int) -> View:
    """The expression itself as a value of a shape whose dimension `axis` is that of the tokens."""
    rest = tuple(size for i, size in enumerate(shape) if i != axis)
    elements = np.arange(of.size).reshape(rest)
    tokens = np.arange(T).reshape([T if i == axis else 1 for i in range(len(shape))])
    return View(of, tokens * of.size + np.expand_dims(elements, axis))


BY_ELEMENT = (
    "silu",
    "gelu",
    "gelu_erf",
    "gelu_quick",
    "relu",
    "sigmoid",
    "tanh",
    "exp",
    "log",
    "floor",
    "round",
    "softplus",
    "sqr",
    "absolute",
    "softcap",
    "scale",
    "clamp",
    "neg",
)


def _has_parts(of: Expression) -> bool:
    """Whether it has parts: with a factor each, joined, or rows of a matrix in another order."""
    rows = of.weights["weight"].rows if of.op == "linear" else None
    return of.op in ("factors", "concat") or (
        rows is not None and rows != tuple(range(rows[0], rows[-1] + 1))
    )


class Selector:
    """Makes expressions of views; equal ones are one."""

    def __init__(self) -> None:
        self._held: dict[tuple[object, ...], Expression] = {}

    def kept(self, expr: Expression) -> Expression:
        """This expression, or one that was made before and is the same."""
        numbers = tuple(sorted((key, repr(value)) for key, value in expr.numbers.items()))
        of_layer = expr.path if expr.op in ("positions", "constant_rows") else ""  # each layer has its own
        key = (expr.op, tuple(map(id, expr.inputs)), expr.shape, tuple(sorted(expr.weights.items())), numbers,
               of_layer)  # fmt: skip
        return self._held.setdefault(key, expr)

    def taken(self, view: View, shape: tuple[int, ...] | None = None) -> Expression:
        """The view as an expression; shape: its own without tokens and dimensions of 1, unless given."""
        elements = view.elements
        if shape is None:
            shape = tuple(size for size in elements.shape if size != 1) or (1,)
        return self.shaped(self._elements(view.of, elements.reshape(-1)), shape)

    def of_rows(self, of: Expression, rows: Codes) -> Expression:
        """Rows of elements of each token, [N, width], as an expression of that shape."""
        codes = np.arange(T)[:, None, None] * of.size + rows[None]
        return self.taken(View(of, codes), rows.shape)

    def shaped(self, of: Expression, shape: tuple[int, ...]) -> Expression:
        """In another shape."""
        while of.op == "reshape":
            of = of.inputs[0]
        if of.shape == shape:
            return of
        return self.kept(replace(of, op="reshape", inputs=(of,), shape=shape, weights={}, numbers={}))

    def _elements(self, of: Expression, wanted: Codes) -> Expression:
        if np.array_equal(wanted, np.arange(of.size)):
            return of
        if of.op == "reshape":
            return self._elements(of.inputs[0], wanted)
        unique = len(np.unique(wanted))
        if unique != len(wanted):
            return self._repeated(of, wanted, unique)
        if of.op == "linear" and len(of.shape) == 1:
            return self._rows(of, wanted)
        of_parts = self._of_parts(of, wanted)
        if of_parts is not None:
            return of_parts
        if of.op in BY_ELEMENT:
            inner = self._elements(of.inputs[0], wanted)
            return self.kept(replace(of, inputs=(inner,), shape=inner.shape))
        if np.array_equal(wanted, np.arange(wanted[0], wanted[0] + len(wanted))):
            numbers = {"start": int(wanted[0]), "stop": int(wanted[-1]) + 1}
            flat = self.shaped(of, (of.size,))
            return self.kept(
                replace(of, op="columns", inputs=(flat,), shape=(len(wanted),), weights={}, numbers=numbers)
            )
        for select in (self._columns_of_each, self._transposed):
            selected = select(of, wanted)
            if selected is not None:
                return selected
        raise ValueError("elements are taken in an order that graphml has no op for")

    def _of_parts(self, of: Expression, wanted: Codes) -> Expression | None:
        """Elements of one of several joined values, or of a convolution or factors of such; else None."""
        if of.op == "factors":
            return self._factors(of, wanted)
        if of.op == "conv" and _has_parts(of.inputs[0]):
            inner = self._elements(of.inputs[0], wanted)
            return self.kept(replace(self._rows(of, wanted), inputs=(inner,)))
        at = 0
        for part in of.inputs if of.op == "concat" and len(of.shape) == 1 else ():
            if at <= wanted.min() and wanted.max() < at + part.size:
                return self._elements(part, wanted - at)
            at += part.size
        return None

    def _factors(self, of: Expression, wanted: Codes) -> Expression:
        """Some of the elements that have a factor each: a scale where it is the same one."""
        inner = self._elements(of.inputs[0], wanted)
        values = tuple(of.numbers["values"][i] for i in wanted)
        numbers: dict[str, Any] = {"values": values}
        if len(set(values)) == 1:
            numbers = {"factor": values[0], "offset": 0.0}
        op = "scale" if "factor" in numbers else "factors"
        return self.kept(replace(of, op=op, inputs=(inner,), shape=inner.shape, numbers=numbers))

    def _repeated(self, of: Expression, wanted: Codes, unique: int) -> Expression:
        """The same elements again and again: all of them, as of a head that all heads share, or each part."""
        n = len(wanted) // unique
        width = next(
            (width for width in range(unique, 0, -1)
             if unique % width == 0 and len(wanted) == n * unique
             and np.all(np.diff(wanted.reshape(-1, n, width), axis=1) == 0)),
            0,
        )  # fmt: skip
        first = wanted.reshape(-1, n, width)[:, 0].reshape(-1) if width else wanted
        if len(np.unique(first)) != len(first):
            raise ValueError("elements are repeated where graphml has no op for it")
        inner = self.shaped(self._elements(of, first), (1, unique))
        repeated = self.kept(
            replace(of, op="repeat", inputs=(inner,), shape=(n, unique), weights={}, numbers={"n": n})
        )
        if width == unique:
            return repeated
        rest = (width,) if width > 1 else ()
        parts = self.shaped(repeated, (n, unique // width, *rest))
        shape = (unique // width, n, *rest)
        return self.kept(replace(of, op="permute", inputs=(parts,), shape=shape, weights={}, numbers={}))

    def _columns_of_each(self, of: Expression, wanted: Codes) -> Expression | None:
        """The same columns of each head, or of each of some neighbouring heads."""
        steps = np.flatnonzero(np.diff(wanted) != 1)
        start, count = int(wanted[0]), int(steps[0]) + 1
        width = int(wanted[count]) - start
        if width <= 0 or of.size % width or start + count > width:
            return None
        rows = np.arange(of.size // width)[:, None] * width + start + np.arange(count)
        if not np.array_equal(wanted, rows.reshape(-1)):
            return None
        inner, numbers = self.shaped(of, (len(rows), width)), {"start": start, "stop": start + count}
        shape = (len(rows), count)
        return self.kept(replace(of, op="columns", inputs=(inner,), shape=shape, weights={}, numbers=numbers))

    def _transposed(self, of: Expression, wanted: Codes) -> Expression | None:
        """All elements with two dimensions exchanged."""
        step = int(wanted[1] - wanted[0]) if len(wanted) == of.size > 1 else 0
        if (
            step < 2
            or of.size % step
            or not np.array_equal(wanted, np.arange(of.size).reshape(-1, step).T.reshape(-1))
        ):
            return None
        inner = self.shaped(of, (of.size // step, step))
        return self.kept(
            replace(of, op="permute", inputs=(inner,), shape=inner.shape[::-1], weights={}, numbers={})
        )

    def _rows(self, of: Expression, wanted: Codes) -> Expression:
        def chosen(weight: Weight) -> Weight:
            rows = np.arange(weight.shape[0]) if weight.rows is None else np.array(weight.rows)
            return replace(weight, rows=tuple(map(int, rows[wanted])), shape=(len(wanted), *weight.shape[1:]))

        weights = {role: chosen(weight) for role, weight in of.weights.items()}
        return self.kept(replace(of, weights=weights, shape=(len(wanted),)))
