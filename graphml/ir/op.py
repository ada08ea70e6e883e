"""Ops: an op is one value with its name, shape rule, NumPy reference, samples and in-place facts.

All facts that a pass or a backend needs about an op are in this value, once; nothing lists ops by name.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphml.errors import GraphError
from graphml.ir.dtype import PARTS, DType
from graphml.ir.shape import Shape, bounds, show
from graphml.ir.suggestion import meant

Array = NDArray[Any]
Floats = NDArray[np.float32]
Attribute = int | float | str | bool | tuple[int, ...] | tuple[float, ...]
Attributes = Mapping[str, Attribute]


def number(attributes: Attributes, name: str) -> float:
    """A numeric attribute; a `GraphError` for any other value."""
    value = attributes[name]
    if not isinstance(value, int | float):
        raise GraphError(f"attribute {name!r}: wanted a number; got {value!r}")
    return float(value)


def integer(attributes: Attributes, name: str) -> int:
    """A whole-number attribute; a `GraphError` for any other value."""
    value = attributes[name]
    if not isinstance(value, int) or isinstance(value, bool):
        raise GraphError(f"attribute {name!r}: wanted a whole number; got {value!r}")
    return int(value)


def integers(attributes: Attributes, name: str) -> tuple[int, ...]:
    """An attribute that is a tuple of whole numbers; a `GraphError` for any other value."""
    value = attributes[name]
    if not isinstance(value, tuple):
        raise GraphError(f"attribute {name!r}: wanted whole numbers; got {value!r}")
    numbers: list[int] = []
    for item in value:
        if not isinstance(item, int):
            raise GraphError(f"attribute {name!r}: wanted whole numbers; got {value!r}")
        numbers.append(int(item))
    return tuple(numbers)


def text(attributes: Attributes, name: str) -> str:
    """A text attribute; a `GraphError` for any other value."""
    value = attributes[name]
    if not isinstance(value, str):
        raise GraphError(f"attribute {name!r}: wanted a text; got {value!r}")
    return value


@dataclass(frozen=True, init=False)
class Type:
    """Element type and shape of a value.

    parts: the types of the results, in order, of a node with several; its dtype is then `PARTS` and its shape
    (). Such a value is read through `part` nodes alone.
    """

    dtype: DType
    shape: Shape
    parts: tuple[Type, ...] = ()

    def __init__(self, dtype: DType, shape: Shape, parts: tuple[Type, ...] = ()) -> None:
        held = self.__dict__  # as a frozen dataclass sets one field after the other, in twice the time
        held["dtype"], held["shape"], held["parts"] = dtype, shape, parts

    @classmethod
    def of_parts(cls, parts: Sequence[Type]) -> Type:
        """The type of a node with several results."""
        return cls(PARTS, (), tuple(parts))

    def __repr__(self) -> str:
        if self.parts:
            return f"({', '.join(map(repr, self.parts))})"
        return f"{self.dtype.name}{show(self.shape)}"


def plain_bytes(kind: Type) -> int:
    """Bytes of a value at its bounds, laid out row after row."""
    *lead, last = bounds(kind.shape) or (1,)
    return prod(lead) * kind.dtype.bytes_for(last)


Fill = Callable[[np.random.Generator, tuple[int, ...]], Array]
"""Makes an operand of a sample from a generator and its shape."""


@dataclass(frozen=True)
class Sample:
    """One way to call an op in a test: input types, how to fill them, attributes.

    `fill[i]` makes input i from a generator and its shape; missing: normal numbers.
    """

    inputs: tuple[Type, ...]
    attributes: Attributes = field(default_factory=dict)
    fill: Mapping[int, Fill] = field(default_factory=dict)


Infer = Callable[[Sequence[Type], Attributes], Type]
Reference = Callable[[Sequence[Array], Attributes], Array]


_NAMES = set[str]()
"""The names of all ops that were made, for hints."""


@dataclass(frozen=True, eq=False)
class Op:
    """An operation of the graph.

    `==` with a text is whether that is its name: `node.op == "mul_mat"`. A text that no op is called, such as
    PyTorch's "matmul", equals none, and a warning names the op that is meant.

    infer: types of the inputs and attributes -> type of the output; raises `ShapeError`.
    reference: the computation in NumPy: arrays and attributes -> array. Values of a block format are uint8
        arrays (see `DType`). An op with `writes` changes that array, and returns it unless it is recurrent.
        None for a fused op: its decomposition is the reference. Several results are an array of arrays.
    samples: inputs to test every backend with.
    attributes: name -> default; None marks a required attribute.
    inplace: inputs whose storage the output may reuse if they have its type and nothing reads them later.
    view: the output is a view of input 0, without storage of its own.
    writes: the input (a state) that the op changes; the output is the changed state, unless
    recurrent: it reads the state too, and its output is a value of its own.
    reads: further inputs that may be a state; no other input may.
    decompose: of a fused op, see `graphml.ir.fused`.
    commutative: the first two inputs may be swapped.
    rowwise: inputs of which a row of the output depends on the same row alone (first dimension), if they
        have as many rows; on other inputs it may depend whole. Empty: nothing is known.
    """

    name: str
    family: str
    infer: Infer
    reference: Reference | None
    samples: Callable[[], list[Sample]]
    attributes: Mapping[str, Attribute | None] = field(default_factory=dict)
    inplace: tuple[int, ...] = ()
    view: bool = False
    writes: int | None = None
    recurrent: bool = False
    reads: tuple[int, ...] = ()
    decompose: Callable[..., Any] | None = None
    commutative: bool = False
    rowwise: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        _NAMES.add(self.name)

    def __repr__(self) -> str:
        return self.name

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, str):
            return self is other
        if other not in _NAMES:
            near = meant(other, _NAMES)
            hint = f"; did you mean {near!r}?" if near else ""
            warnings.warn(f"op == {other!r:.80}: no op is called so{hint}", stacklevel=2)
        return other == self.name

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def is_write(self) -> bool:
        """Whether the output is the state that the op changes, without storage of its own."""
        return self.writes is not None and not self.recurrent

    def __call__(self, *arguments: Term | str) -> Term:
        """A term over variables, the notation of patterns: `mul(silu(gate), up)`.

        A node has its methods in `g`: `GraphError`.
        """
        nodes = [argument for argument in arguments if not isinstance(argument, Term | str)]
        if nodes:
            raise GraphError(
                f"op {self.name}: wanted variables as texts, or terms; got {nodes[0]!r:.80} (of nodes "
                f"g.{self.name}(...) makes a node)"
            )
        return Term(self, arguments)


@dataclass(frozen=True)
class Term:
    """An op applied to terms and variables (strings): the left side of a rewriting rule.

    required: attributes that the node must have, with their values.
    """

    op: Op
    arguments: tuple[Term | str, ...]
    required: tuple[tuple[str, Attribute], ...] = ()

    def having(self, **attributes: Attribute) -> Term:
        """The same term, which matches only nodes with these attributes."""
        return Term(self.op, self.arguments, (*self.required, *attributes.items()))

    @cached_property  # read for every node that a pattern may begin at
    def size(self) -> int:
        """How many nodes it covers, where no two of its terms match the same one."""
        return 1 + sum(term.size for term in self.arguments if isinstance(term, Term))

    @cached_property
    def heads(self) -> tuple[Op | None, ...]:
        """The op of each argument, None for variables."""
        return tuple(term.op if isinstance(term, Term) else None for term in self.arguments)

    def __repr__(self) -> str:
        wanted = "".join(f", {name}={value!r}" for name, value in self.required)
        return f"{self.op.name}({', '.join(map(str, self.arguments))}{wanted})"


@dataclass(frozen=True)
class Several:
    """Two or more nodes that match a term and agree in one variable: products of one input, say.

    The fused op has a result for each of them, and each other variable once for each of them.
    """

    term: Term
    sharing: str

    def __repr__(self) -> str:
        return f"several {self.term!r} of one {self.sharing}"


Pattern = Term | tuple[Term, ...] | Several
"""The pattern of a fusion: a term, terms of which the last contains the others, or several of one term.

Every term of a tuple is a result of the fused op: others may read it.
"""
