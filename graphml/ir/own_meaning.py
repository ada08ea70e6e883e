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
        self._asked = [one.name for one in rule if one.kind is inspect.Parameter.KEYWORD_ONLY]
        unknown = [one for one in self._asked if one not in declared.kinds]
        if unknown:
            declared.fail(f"its shape rule asks for {unknown[0]!r}; its attributes: {list(declared.kinds)}")

    def _dtypes_of(self, given: Any) -> tuple[DType, ...]:
        declared = self._declared
        if not isinstance(given, Mapping) or not all(isinstance(one, DType) for one in given.values()):
            declared.fail(f'dtypes: wanted operand -> dtype, such as {{"ids": I32}}; got {given!r}')
        declared.numbers_of("dtypes", list(given))
        found = tuple(given.get(one, F32) for one in declared.operands)
        for one, kind in zip(declared.operands, found, strict=True):
            if kind.is_format:
                declared.fail(f"operand {one!r}: wanted plain numbers; got {kind.name} (see g.dequantize)")
        return found

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
        least = 0 if any(0 in kind.shape for kind in inputs) else 1  # a step may have no rows
        kinds = [_plain(kind, rule, least) for kind in (found if isinstance(found, tuple) else (found,))]
        if not kinds:
            raise ShapeError(f"{rule}: wanted at least one type; got ()")
        return Type.of_parts(kinds) if isinstance(found, tuple) else kinds[0]

    def reference(self, inputs: Sequence[Array], attributes: Attributes) -> Array:
        """See `Op.reference`. The function gets arrays that it cannot change, its result is copied."""
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
        """A result in its dtype: functions may compute in double precision, and use an array again."""
        wanted = kind.dtype.numpy
        assert wanted is not None
        try:
            array = np.asarray(found)
        except ValueError as error:
            self._fail(kind, which, f"{type(found).__name__}, which is no array: {error}")
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
