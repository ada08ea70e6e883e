"""Ops of one's own: `op` makes an op of a NumPy function, whose signature declares operands and attributes.

    @op(shape=lambda x: x, samples=[sample(f32(ROWS, 64)), sample(f32(ROWS, 7), eps=1e-3)])
    def softpick(x, *, eps: float = 1e-6):
        '''relu(exp(x) - 1) / (sum(abs(exp(x) - 1)) + eps) over the last dimension (arXiv:2504.20966).'''

The function is the op's meaning: it gets an array for each operand and returns the result, or a tuple of
several. What the declaration says is checked when it is made, when a graph is built, and whenever the
function has been run. Kernels for backends are optional: `softpick.kernel("cpu")`. Knows no backend, file or
model.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from graphml.ir import op_table
from graphml.ir.dtype import DType
from graphml.ir.function_hash import Reached, codes_of, reached
from graphml.ir.op import Attribute, Fill, Op, Sample, Type
from graphml.ir.own_meaning import OwnMeaning
from graphml.ir.own_samples import check_samples, samples_of
from graphml.ir.own_signature import OwnSignature, read_signature
from graphml.ir.source import Source, called_from, caller

OWN_FAMILY = "own"
Shape = Callable[..., Type | tuple[Type, ...]]


@dataclass(frozen=True, eq=False)
class OwnKernel:
    """A kernel of an op of one's own; what the function and the options mean is its backend's.

    source: the line that declared it, for kernels that are no functions.
    """

    function: Any
    options: Mapping[str, Any] = field(default_factory=dict)
    source: Source | None = None


@dataclass(frozen=True, eq=False, repr=False)
class OwnOp(Op):
    """An op that was declared outside graphml: plain, with a reference, or fused, with a decomposition.

    declared: its signature. written: the functions that define it. help, paper: for a person. kernels:
    backend -> kernel.
    """

    declared: OwnSignature = field(kw_only=True)
    written: tuple[Callable[..., Any], ...] = ()
    help: str = ""
    paper: str = ""
    kernels: dict[str, OwnKernel] = field(default_factory=dict)

    def kernel(self, *backends: str, **options: Any) -> Callable[[Any], Any]:
        """Make what is decorated the kernel of this op for some backends.

        For a processor a function `(out, x, weight, begin, end, eps)`, with numba's options such as
        `fastmath`; for GPUs a kernel of their language or a text: docs/own-ops.md. A second kernel for one
        backend is a `GraphError`.
        """
        if not backends or not all(isinstance(name, str) for name in backends):
            self.declared.fail(f"kernel: wanted names of backends; got {backends!r}{called_from()}")

        def keep(function: Any) -> Any:
            source = caller()
            for name in backends:
                if name in self.kernels:
                    self.declared.fail(f"it has a kernel for {name} already{called_from()}")
                self.kernels[name] = OwnKernel(function, options, source)
            return function

        return keep

    @cached_property
    def definition(self) -> str:
        """A hash of its functions and all that they call: what was computed with another is not reused."""
        parts = [repr(sorted(self.attributes.items())), str(self.inplace)]
        parts.append(repr([kind.dtype.name for kind in self.samples()[0].inputs]))
        ops = [self]
        for op in ops:
            for each in map(reached, op.written):
                parts.append(each.hash)
                ops += [other for other in _called_by_name(each) if self.decompose and other not in ops]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    def is_like(self, other: Op) -> bool:
        """Whether another op has the same definition."""
        return isinstance(other, OwnOp) and other.definition == self.definition

    def fitted(self, attributes: Mapping[str, Attribute]) -> dict[str, Attribute]:
        """The attributes in the declared types; a `GraphError` for values of others."""
        return self.declared.fitted(attributes)


def _called_by_name(written: Reached) -> list[OwnOp]:
    """The ops of one's own that functions may call as methods of a builder."""
    codes = [code for function in written.functions for code in codes_of(function.__code__)]
    names = dict.fromkeys(name for code in codes for name in code.co_names)
    return [op for op in map(op_table.own_op, names) if isinstance(op, OwnOp)]


def sample(*inputs: Type, fill: Mapping[int, Fill] | None = None, **attributes: Attribute) -> Sample:
    """Inputs to test an op with: the operands' types, attributes, and how to fill some operands.

    fill: number of an operand -> a function of a generator and a shape; missing: normal numbers, zeros for
    whole numbers.
    """
    return Sample(tuple(inputs), attributes, fill or {})


def op(
    *,
    shape: Shape,
    samples: Sequence[Sample],
    dtypes: Mapping[str, DType] | None = None,
    inplace: Sequence[str] = (),
    rowwise: Sequence[str] = (),
    commutative: bool = False,
    paper: str = "",
    name: str | None = None,
) -> Callable[[Callable[..., Any]], OwnOp]:
    """Make a function the NumPy meaning of an op of its name, which graphs, dumps and `g` then know.

    shape: a function of the operands' types, and of the attributes that are its parameters behind `*`, that
    returns the result's type, or a tuple of types; it raises `ShapeError` for operands that do not fit.
    samples: inputs to test every backend with. dtypes: of operands other than f32. inplace, rowwise,
    commutative: as in `graphml.ir.op.Op`, operands by name; the samples have to bear them out. Raises
    `GraphError`, with file and line, for a declaration that contradicts itself or an op whose name is taken.
    """

    def declare(function: Callable[..., Any]) -> OwnOp:
        declared = read_signature(function, name)
        meaning = OwnMeaning(function, declared, shape, {} if dtypes is None else dtypes)
        kept = samples_of(declared, samples)
        op = OwnOp(
            declared.name, OWN_FAMILY, meaning.infer, meaning.reference, lambda: list(kept),
            dict(declared.defaults), inplace=declared.numbers_of("inplace", inplace), commutative=commutative,
            rowwise=declared.numbers_of("rowwise", rowwise), declared=declared,
            written=(function, shape), help=inspect.getdoc(function) or "", paper=paper,
        )  # fmt: skip
        check_samples(op, declared)
        op_table.register(op, declared.source, op.is_like)
        return op

    return declare
