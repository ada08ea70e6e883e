"""From a view back to an expression: all of its elements, columns, or rows of the matrix that made them.

Knows expressions; nothing of torch's ops.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from graphml.authoring.importing.expressions import Codes, Expression, View, Weight

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


class Selector:
    """Makes expressions of views; equal ones are one."""

    def __init__(self) -> None:
        self._held: dict[tuple[object, ...], Expression] = {}

    def kept(self, expr: Expression) -> Expression:
        """This expression, or one that was made before and is the same."""
        numbers = tuple(sorted((key, repr(value)) for key, value in expr.numbers.items()))
        key = (expr.op, tuple(map(id, expr.inputs)), expr.shape, tuple(sorted(expr.weights.items())), numbers)
        return self._held.setdefault(key, expr)

    def taken(self, view: View, shape: tuple[int, ...] | None = None) -> Expression:
        """The view as an expression; shape: its own without tokens and dimensions of 1, unless given."""
        elements = view.elements
        if shape is None:
            shape = tuple(size for size in elements.shape if size != 1) or (1,)
        return self.shaped(self._elements(view.of, elements.reshape(-1)), shape)

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
        if len(np.unique(wanted)) != len(wanted):
            raise ValueError("elements are repeated where graphml has no op for it")
        if of.op == "linear" and len(of.shape) == 1:
            return self._rows(of, wanted)
        if of.op in BY_ELEMENT:
            inner = self._elements(of.inputs[0], wanted)
            return self.kept(replace(of, inputs=(inner,), shape=inner.shape))
        if np.array_equal(wanted, np.arange(wanted[0], wanted[0] + len(wanted))):
            numbers = {"start": int(wanted[0]), "stop": int(wanted[-1]) + 1}
            flat = self.shaped(of, (of.size,))
            return self.kept(
                replace(of, op="columns", inputs=(flat,), shape=(len(wanted),), weights={}, numbers=numbers)
            )
        columns = self._columns_of_each(of, wanted)
        if columns is not None:
            return columns
        raise ValueError("elements are taken in an order that graphml has no op for")

    def _columns_of_each(self, of: Expression, wanted: Codes) -> Expression | None:
        """The same columns of each head."""
        if len(of.shape) != 2 or len(wanted) % of.shape[0]:
            return None
        rows = wanted.reshape(of.shape[0], -1)
        start, count = int(rows[0, 0]), rows.shape[1]
        expected = np.arange(of.shape[0])[:, None] * of.shape[1] + start + np.arange(count)[None]
        if start + count > of.shape[1] or not np.array_equal(rows, expected):
            return None
        numbers = {"start": start, "stop": start + count}
        return self.kept(
            replace(of, op="columns", inputs=(of,), shape=(of.shape[0], count), weights={}, numbers=numbers)
        )

    def _rows(self, of: Expression, wanted: Codes) -> Expression:
        def chosen(weight: Weight) -> Weight:
            rows = np.arange(weight.shape[0]) if weight.rows is None else np.array(weight.rows)
            return replace(weight, rows=tuple(map(int, rows[wanted])), shape=(len(wanted), *weight.shape[1:]))

        weights = {role: chosen(weight) for role, weight in of.weights.items()}
        return self.kept(replace(of, weights=weights, shape=(len(wanted),)))
