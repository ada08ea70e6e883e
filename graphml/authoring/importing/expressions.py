"""Expressions: what the imported file will compute, by graphml's ops; views: elements of one in some order.

Knows shapes without tokens: a value [T, 4, 16] is of shape (4, 16). Nothing of torch's ops.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

T = 7  # tokens in the codes of views
Codes = NDArray[np.int64]


@dataclass(frozen=True)
class Weight:
    """A tensor that depends on parameters alone: a node or input, transposed, and some of its rows.

    shape: as graphml stores it; rows: of the matrix after it was transposed, None for all.
    """

    source: str
    shape: tuple[int, ...]
    transposed: bool = False
    rows: tuple[int, ...] | None = None


@dataclass(frozen=True, eq=False)
class Expression:
    """One op of graphml. shape: of the result without its first dimension, the tokens.

    path, told: module path, and op with source line, of the node that it comes from.
    """

    op: str
    inputs: tuple[Expression, ...]
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
