"""Shape rule and reference of an op of one's own: its functions, and checks of what they get and return."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any, NoReturn

import numpy as np

from graphml.errors import GraphError, ShapeError
from graphml.ir.dtype import F32, DType
from graphml.ir.op import Array, Attributes, Type
from graphml.ir.own_signature import OwnSignature, fitted, place_of
from graphml.ir.shape import Symbol


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
        if not isinstance(dtypes, Mapping) or not all(isinstance(dtype, DType) for dtype in dtypes.values()):
            declared.fail(f'dtypes: wanted operand -> dtype, such as {{"ids": I32}}; got {dtypes!r}')
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
