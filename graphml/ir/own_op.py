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
from types import FunctionType
from typing import Any, NoReturn

import numpy as np

from graphml.errors import GraphError, ShapeError, UsageError
from graphml.ir import op_table
from graphml.ir.dtype import F32, DType, as_dtype, is_dtype
from graphml.ir.function_hash import Reached, codes_of, reached
from graphml.ir.op import Array, Attribute, Attributes, Fill, Op, Sample, Type
from graphml.ir.own_samples import check_samples, samples_of
from graphml.ir.own_signature import OwnSignature, fitted, place_of, read_signature
from graphml.ir.shape import Symbol
from graphml.ir.source import Source, called_from, caller


class OwnMeaning:
    """What an op's functions say, checked."""

    def __init__(self, function: Callable[..., Any], declared: OwnSignature, shape: Any, dtypes: Any) -> None:
        self._function, self._declared, self._shape = function, declared, shape
        if not isinstance(shape, FunctionType):
            declared.fail(f"shape: wanted a function of the operands' types, def or lambda; got {shape!r}")
        self._dtypes = self._dtypes_of(dtypes)
        rule = inspect.signature(shape).parameters.values()
        self._asked = [
            parameter.name for parameter in rule if parameter.kind is inspect.Parameter.KEYWORD_ONLY
        ]
        unknown = [name for name in self._asked if name not in declared.kinds]
        if unknown:
            declared.fail(f"its shape rule asks for {unknown[0]!r}; its attributes: {list(declared.kinds)}")

    def _dtypes_of(self, dtypes: Any) -> tuple[DType, ...]:
        declared = self._declared
        if not isinstance(dtypes, Mapping) or not all(map(is_dtype, dtypes.values())):
            declared.fail(f'dtypes: wanted operand -> dtype, such as {{"ids": "i32"}}; got {dtypes!r}')
        dtypes = {operand: as_dtype(kind) for operand, kind in dtypes.items()}
        declared.numbers_of("dtypes", list(dtypes))
        ordered = tuple(dtypes.get(operand, F32) for operand in declared.operands)
        for operand, kind in zip(declared.operands, ordered, strict=True):
            if kind.is_format:
                declared.fail(
                    f"operand {operand!r}: wanted plain numbers; got {kind.name} (see g.dequantize)"
                )
        return ordered

    def infer(self, inputs: Sequence[Type], attributes: Attributes) -> Type:
        """See `Op.infer`."""
        names = self._declared.operands
        if len(inputs) != len(names):
            raise ShapeError(f"wanted {len(names)} operands ({', '.join(names)}); got {len(inputs)}")
        for operand, wanted, operand_type in zip(names, self._dtypes, inputs, strict=True):
            if operand_type.dtype is not wanted:
                raise ShapeError(f"operand {operand!r}: wanted {wanted.name}; got {operand_type}")
        for name, value in attributes.items():
            fitted(name, self._declared.kinds[name], value)
        rule = f"its shape rule ({place_of(self._shape)})"
        try:
            result = self._shape(*inputs, **{name: attributes[name] for name in self._asked})
        except GraphError:
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise ShapeError(f"{rule} raised {reason}; of {list(inputs)}") from error
        least = 0 if any(0 in kind.shape for kind in inputs) else 1  # a step may have no rows
        kinds = [_plain(kind, rule, least) for kind in (result if isinstance(result, tuple) else (result,))]
        if not kinds:
            raise ShapeError(f"{rule}: wanted at least one type; got ()")
        return Type.of_parts(kinds) if isinstance(result, tuple) else kinds[0]

    def reference(self, inputs: Sequence[Array], attributes: Attributes) -> Array:
        """See `Op.reference`. The function gets arrays that it cannot change, its result is copied."""
        arrays = [array.view() for array in inputs]
        for array in arrays:
            array.flags.writeable = False
        shown = ", ".join(f"{array.dtype}{list(array.shape)}" for array in arrays)
        try:
            with np.errstate(all="ignore"):
                result = self._function(*arrays, **attributes)
        except Exception as error:
            self._declared.fail(f"its function raised {type(error).__name__}: {error}; of {shown}")
        kind = self.infer(
            [Type(dtype, a.shape) for dtype, a in zip(self._dtypes, arrays, strict=True)], attributes
        )
        if not kind.parts:
            return self._as(result, kind, "")
        if not isinstance(result, tuple) or len(result) != len(kind.parts):
            many = len(result) if isinstance(result, tuple) else type(result).__name__
            self._declared.fail(f"its shape rule says {len(kind.parts)} results; its function returns {many}")
        results: Array = np.empty(len(kind.parts), object)
        for i, (array, part) in enumerate(zip(result, kind.parts, strict=True)):
            results[i] = self._as(array, part, f" {i}")
        return results

    def _as(self, result: Any, kind: Type, which: str) -> Array:
        """A result in its dtype: functions may compute in double precision, and use an array again."""
        wanted = kind.dtype.numpy
        assert wanted is not None
        try:
            array = np.asarray(result)
        except ValueError as error:
            self._fail(kind, which, f"{type(result).__name__}, which is no array: {error}")
        if array.shape != kind.shape or array.dtype.kind != wanted.kind:
            self._fail(kind, which, f"{array.dtype}{list(array.shape)}")
        with np.errstate(over="ignore"):
            return np.array(array, wanted, order="C")

    def _fail(self, kind: Type, which: str, got: str) -> NoReturn:
        self._declared.fail(f"its shape rule says {kind} for result{which}; its function returns {got}")


def _plain(kind: Any, rule: str, least: int) -> Type:
    """A type that a shape rule returned, its sizes as Python's whole numbers."""
    if not isinstance(kind, Type) or not isinstance(kind.dtype, DType) or kind.dtype.is_format:
        raise ShapeError(f"{rule}: wanted types of plain numbers; got {kind!r}")
    if not isinstance(kind.shape, tuple) or not all(_is_size(dim, least) for dim in kind.shape):
        wanted = f"a tuple of symbols and whole numbers of at least {least}"
        raise ShapeError(f"{rule}: wanted as a shape {wanted}; got {kind.shape!r}")
    if not kind.shape or isinstance(kind.shape[-1], Symbol):
        raise ShapeError(f"wanted a last dimension known when the graph is built; got {kind}")
    return Type(kind.dtype, tuple(dim if isinstance(dim, Symbol) else int(dim) for dim in kind.shape))


def _is_size(dim: Any, least: int) -> bool:
    is_whole = isinstance(dim, int | np.integer) and not isinstance(dim, bool)
    return isinstance(dim, Symbol) or (is_whole and dim >= least)


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

    def __call__(self, *arguments: Any, **attributes: Any) -> Any:
        """What the op computes of arrays, by its function in NumPy; of variables a term, as any op.

        Numbers and lists become float32; attributes by name. `GraphError` for other operands than declared.
        """
        arrays = [each for each in arguments if isinstance(each, list | float | np.ndarray | np.generic)]
        if not arrays or len(arrays) != len(arguments) or self.reference is None:
            return super().__call__(*arguments)
        operands, defaults = self.declared.operands, self.declared.defaults
        needed = {name for name, value in defaults.items() if value is None}
        if len(arrays) != len(operands) or attributes.keys() - defaults or needed - attributes.keys():
            wanted = ", ".join((*operands, *(f"{name}=" for name in defaults)))
            got = ", ".join((f"{len(arrays)} arrays", *attributes))
            self.declared.fail(f"wanted {wanted}; got {got}{called_from()}")
        plain = [np.asarray(x, None if hasattr(x, "dtype") else np.float32) for x in arrays]
        stated = {name: value for name, value in defaults.items() if value is not None}
        return self.reference(plain, self.fitted(stated | attributes))

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
    *wrong: Any,
    shape: Shape | None = None,
    samples: Sequence[Sample] | None = None,
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
    if wrong or shape is None or samples is None:
        got = ", ".join(
            key for key, value in (("shape", shape), ("samples", samples)) if value is not None
        ) or ("a function alone" if callable(wrong[0] if wrong else None) else "neither")
        raise UsageError(
            "op: wanted @op(shape=lambda x: x, samples=[sample(f32(ROWS, 64))]) above a function, "
            "with `from graphml.ops import ROWS, f32, sample`; got "
            f"{got}{called_from()} (docs/own-ops.md; ops that there are already are methods of g)"
        )

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
