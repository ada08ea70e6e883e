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

import numpy as np

from graphml.errors import GraphError, ShapeError
from graphml.ir import op_table
from graphml.ir.dtype import F32, DType, dtype
from graphml.ir.function_hash import Reached, codes_of, reached
from graphml.ir.op import Array, Attribute, Attributes, Fill, Op, Sample, Type
from graphml.ir.own_signature import OwnSignature, fitted, place_of, read_signature
from graphml.ir.shape import Symbol, bounds
from graphml.ir.source import Source, called_from, caller
from graphml.ir.symbol_rules import check_symbols

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
        found = [repr(sorted(self.attributes.items())), str(self.inplace)]
        found.append(repr([kind.dtype.name for kind in self.samples()[0].inputs]))
        ops = [self]
        for op in ops:
            for each in map(reached, op.written):
                found.append(each.hash)
                ops += [other for other in _called_by_name(each) if self.decompose and other not in ops]
        return hashlib.sha256("\n".join(found).encode()).hexdigest()

    def fitted(self, attributes: Mapping[str, Attribute]) -> dict[str, Attribute]:
        """The attributes in the declared types; a `GraphError` for values of others."""
        kinds = self.declared.kinds
        return {name: fitted(name, kinds[name], value) for name, value in attributes.items()}


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
    commutative: as in `graphml.ir.op.Op`, operands by name. Raises `GraphError`, with file and line, for a
    declaration that contradicts itself or an op whose name is taken.
    """

    def declare(function: Callable[..., Any]) -> OwnOp:
        declared = read_signature(function, name or function.__name__)
        meaning = _Meaning(function, declared, shape, dtypes or {})
        made = OwnOp(
            declared.name, OWN_FAMILY, meaning.infer, meaning.reference, lambda: list(samples),
            dict(declared.defaults), inplace=declared.numbers_of("inplace", inplace), commutative=commutative,
            rowwise=declared.numbers_of("rowwise", rowwise), declared=declared,
            written=(function, shape), help=inspect.getdoc(function) or "", paper=paper,
        )  # fmt: skip
        check_samples(made)
        op_table.register(made, declared.source)
        return made

    return declare


class _Meaning:
    """Shape rule and reference of an op, with checks of what they are given and what they return."""

    def __init__(
        self, function: Callable[..., Any], declared: OwnSignature, shape: Shape, dtypes: Mapping[str, DType]
    ) -> None:
        self._function, self._declared, self._shape = function, declared, shape
        declared.numbers_of("dtypes", list(dtypes))
        self._dtypes = tuple(dtypes.get(one, F32) for one in declared.operands)
        for one, kind in zip(declared.operands, self._dtypes, strict=True):
            if kind.is_format:
                declared.fail(f"operand {one!r}: wanted plain numbers; got {kind.name} (see g.dequantize)")
        rule = inspect.signature(shape).parameters.values()
        self._asked = [one.name for one in rule if one.kind is inspect.Parameter.KEYWORD_ONLY]
        unknown = [one for one in self._asked if one not in declared.kinds]
        if unknown:
            declared.fail(f"its shape rule asks for {unknown[0]!r}; its attributes: {list(declared.kinds)}")

    def infer(self, inputs: Sequence[Type], attributes: Attributes) -> Type:
        """See `Op.infer`."""
        names = self._declared.operands
        if len(inputs) != len(names):
            raise ShapeError(f"wanted {len(names)} operands ({', '.join(names)}); got {len(inputs)}")
        for one, wanted, given in zip(names, self._dtypes, inputs, strict=True):
            if given.dtype is not wanted:
                raise ShapeError(f"operand {one!r}: wanted {wanted.name}; got {given}")
        for one, value in attributes.items():
            fitted(one, self._declared.kinds[one], value)
        rule = f"its shape rule ({place_of(self._shape)})"
        try:
            found = self._shape(*inputs, **{one: attributes[one] for one in self._asked})
        except GraphError:
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise ShapeError(f"{rule} raised {reason}; of {list(inputs)}") from error
        kinds = found if isinstance(found, tuple) else (found,)
        for kind in kinds:
            if not isinstance(kind, Type) or kind.dtype.is_format:
                raise ShapeError(f"{rule}: wanted types of plain numbers; got {kind!r}")
            if not kind.shape or isinstance(kind.shape[-1], Symbol):
                raise ShapeError(f"wanted a last dimension known when the graph is built; got {kind}")
        return Type.of_parts(kinds) if isinstance(found, tuple) else found

    def reference(self, inputs: Sequence[Array], attributes: Attributes) -> Array:
        """See `Op.reference`. The function gets arrays that it cannot change."""
        arrays = [array.view() for array in inputs]
        for array in arrays:
            array.flags.writeable = False
        shown = ", ".join(f"{array.dtype}{list(array.shape)}" for array in arrays)
        try:
            with np.errstate(all="ignore"):
                found = self._function(*arrays, **attributes)
        except Exception as error:
            self._declared.fail(f"its function raised {type(error).__name__}: {error}; of {shown}")
        kind = self.infer(
            [Type(one, a.shape) for one, a in zip(self._dtypes, arrays, strict=True)], attributes
        )
        if not kind.parts:
            return self._as(found, kind, "")
        if not isinstance(found, tuple) or len(found) != len(kind.parts):
            many = len(found) if isinstance(found, tuple) else type(found).__name__
            self._declared.fail(f"its shape rule says {len(kind.parts)} results; its function returns {many}")
        results: Array = np.empty(len(kind.parts), object)
        for i, (one, part) in enumerate(zip(found, kind.parts, strict=True)):
            results[i] = self._as(one, part, f" {i}")
        return results

    def _as(self, found: Any, kind: Type, which: str) -> Array:
        """A result in its dtype: functions may compute in double precision."""
        array, wanted = np.asarray(found), kind.dtype.numpy
        assert wanted is not None
        if array.shape != kind.shape or array.dtype.kind != wanted.kind:
            self._declared.fail(
                f"its shape rule says {kind} for result{which}; its function returns "
                f"{array.dtype}{list(array.shape)}"
            )
        return np.ascontiguousarray(array, wanted)


def check_samples(made: OwnOp) -> None:
    """Run the reference on every sample; a `GraphError` where shape rule, function and samples disagree."""
    samples = made.samples()
    if not samples:
        made.declared.fail("samples: wanted at least one, to test it with")
    generator = np.random.default_rng(0)
    for number, one in enumerate(samples):
        if not isinstance(one, Sample):
            made.declared.fail(f"sample {number}: wanted what graphml.ops.sample returns; got {one!r:.100}")
        try:
            unknown = [name for name in one.attributes if name not in made.attributes]
            if unknown:
                raise GraphError(f"no attribute is called {unknown[0]!r}; it has {list(made.attributes)}")
            given = {**made.attributes, **one.attributes}
            missing = [name for name, value in given.items() if value is None]
            if missing:
                raise GraphError(f"wanted a value for the attribute {missing[0]!r}")
            attributes = made.fitted({name: value for name, value in given.items() if value is not None})
            for kind in (*one.inputs, made.infer(one.inputs, attributes)):
                check_symbols(made, kind)
            if made.reference is not None:
                made.reference([_filled(one, i, generator) for i in range(len(one.inputs))], attributes)
        except GraphError as error:
            if str(error).startswith(f"op {made.name!r}"):
                raise
            made.declared.fail(f"sample {number}: {error}")


def _filled(one: Sample, i: int, generator: np.random.Generator) -> Array:
    kind, shape = one.inputs[i], bounds(one.inputs[i].shape)
    made = one.fill.get(i)
    if made is not None:
        return np.asarray(made(generator, shape), kind.dtype.numpy)
    is_whole = kind.dtype.numpy is not None and kind.dtype.numpy.kind == "i"
    values: Array = np.zeros(shape) if is_whole else generator.standard_normal(shape)
    return values.astype(kind.dtype.numpy or dtype("f32").numpy)
