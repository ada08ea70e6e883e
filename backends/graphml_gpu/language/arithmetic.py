"""The arithmetic of devices in NumPy scalars, for the emulator: the functions that its texts call."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np

from graphml_gpu.language.features import Features


def types(features: Features) -> dict[str, Any]:
    """Kind -> NumPy scalar type; halves are computed in f32 where the device has no arithmetic for them."""
    half = np.float16 if features.f16 else np.float32
    return {"f32": np.float32, "f16": half, "i32": np.int32, "u32": np.uint32, "bool": np.bool_}


def across(what: str, values: Sequence[Any], lane: int, by: Any) -> Any:
    """What one lane of a subgroup gets; from a lane that is not there, anything."""
    if what in ("xor", "broadcast"):
        other = lane ^ int(by) if what == "xor" else int(by)
        if other < len(values):
            return values[other]
        garbage = np.asarray(values[lane])
        return np.full_like(garbage, np.nan if garbage.dtype.kind == "f" else 0x5EED)[()]
    pairs: Mapping[str, Callable[[Any, Any], Any]] = {"sum": np.add, "max": np.fmax}
    return reduce(pairs[what], values)


class Runtime:
    """The functions of a text, for one choice of types."""

    def __init__(self, types: Mapping[str, Any]) -> None:
        self.types = types
        for kind, scalar in types.items():
            for lanes in (1, 2, 4):
                setattr(
                    self, kind if lanes == 1 else f"{kind}x{lanes}", scalar if lanes == 1 else (scalar, lanes)
                )

    def convert(self, kind: Any, *values: Any) -> Any:
        """Values as a scalar, or as the lanes of a vector; floats become integers cut, and within bounds."""
        scalar, lanes = kind if isinstance(kind, tuple) else (kind, 1)
        flat = np.asarray(values[0]) if len(values) == 1 else np.asarray(values)
        if np.issubdtype(scalar, np.integer) and np.issubdtype(flat.dtype, np.floating):
            bounds = np.iinfo(scalar)
            cut = np.trunc(np.nan_to_num(flat.astype(np.float64), nan=0.0))
            flat = np.clip(cut, bounds.min, bounds.max).astype(np.int64)
        converted = flat.astype(scalar)
        return np.broadcast_to(converted, (lanes,)).copy() if lanes > 1 else converted[()]

    def bitcast(self, value: Any, kind: Any) -> Any:
        """The same bits as another type."""
        scalar, lanes = kind if isinstance(kind, tuple) else (kind, 1)
        viewed = np.atleast_1d(np.asarray(value)).view(scalar)
        return viewed if lanes > 1 else viewed[0]

    def count(self, begin: Any, end: Any, step: Any) -> Iterator[Any]:
        """The values of a `for`."""
        kind = type(begin)
        for value in range(int(begin), int(end), int(step)):
            yield kind(value)

    def divide(self, a: Any, b: Any) -> Any:
        """Integers, cut towards zero; by zero: what it is on most devices, all ones."""
        quotient = np.where(b == 0, -1, np.trunc(np.true_divide(a, np.where(b == 0, 1, b))))
        return quotient.astype(np.int64).astype(np.asarray(a).dtype)[()]

    def remainder(self, a: Any, b: Any) -> Any:
        """What is left of the division cut towards zero."""
        return a - self.divide(a, b) * b

    def shift_left(self, a: Any, b: Any) -> Any:
        """By the lower five bits of b."""
        return np.left_shift(a, np.asarray(b & type_of(b)(31)).astype(np.asarray(a).dtype))

    def shift_right(self, a: Any, b: Any) -> Any:
        """By the lower five bits of b; with the sign where a has one."""
        return np.right_shift(a, np.asarray(b & type_of(b)(31)).astype(np.asarray(a).dtype))

    def with_lane(self, vector: Any, lane: int, value: Any) -> Any:
        """The vector with one lane changed."""
        changed = vector.copy()
        changed[lane] = value
        return changed

    def show(self, at: Any, *values: Any) -> None:
        """What `debug_print` was given, with the invocation."""
        groups, local = (tuple(map(int, numbers)) for numbers in (at.group_id, at.local_id))
        print(f"group {groups} invocation {local}:", *values, file=sys.stderr)

    def unpack_half2(self, word: Any) -> Any:
        """Two halves of a word."""
        return np.array([word], np.uint32).view(np.float16).astype(np.float32)

    def pack_half2(self, pair: Any) -> Any:
        """Two values as halves in a word."""
        return np.asarray(pair).astype(np.float16).view(np.uint32)[0]

    def dot4_i8(self, a: Any, b: Any, total: Any) -> Any:
        """total + the products of four signed bytes."""
        bytes_a, bytes_b = (np.array([word], np.uint32).view(np.int8).astype(np.int32) for word in (a, b))
        return total + np.int32((bytes_a * bytes_b).sum())

    def dot(self, a: Any, b: Any) -> Any:
        """The sum of the products of the lanes."""
        return (a * b).sum(dtype=a.dtype)

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        """A * b + c, rounded once (in f32)."""
        return np.asarray(np.float64(a) * np.float64(b) + np.float64(c)).astype(np.asarray(a).dtype)[()]

    def clamp(self, value: Any, low: Any, high: Any) -> Any:
        """The value within bounds."""
        return np.minimum(np.maximum(value, low), high)

    def inverse_sqrt(self, value: Any) -> Any:
        """1 / sqrt."""
        return (np.asarray(1, np.asarray(value).dtype) / np.sqrt(value))[()]

    def count_bits(self, value: Any) -> Any:
        """How many bits are set."""
        return np.bitwise_count(value).astype(np.asarray(value).dtype)

    exp, exp2, log, log2 = (staticmethod(f) for f in (np.exp, np.exp2, np.log, np.log2))
    sin, cos, sqrt = (staticmethod(f) for f in (np.sin, np.cos, np.sqrt))
    floor, ceil, trunc, round = (staticmethod(f) for f in (np.floor, np.ceil, np.trunc, np.rint))
    pow, min, max = (staticmethod(f) for f in (np.power, np.fmin, np.fmax))
    abs = staticmethod(np.abs)
    isnan, isinf = staticmethod(np.isnan), staticmethod(np.isinf)
    below, most, above, least = map(staticmethod, (operator.lt, operator.le, operator.gt, operator.ge))
    equal, unlike = staticmethod(operator.eq), staticmethod(operator.ne)


class Numbers(Runtime):
    """As compiled by a driver that takes every float for a number, as Vulkan and WGSL allow.

    holds: what comes of an order between a NaN and anything; a float is always equal to itself.
    """

    def __init__(self, types: Mapping[str, Any], holds: bool) -> None:
        super().__init__(types)
        self.below, self.most, self.above, self.least = (
            self._order(f, holds) for f in (operator.lt, operator.le, operator.gt, operator.ge)
        )
        self.equal, self.unlike = self._order(operator.eq, True), self._order(operator.ne, False)

    @staticmethod
    def _order(compared: Callable[[Any, Any], Any], holds: bool) -> Callable[[Any, Any], Any]:
        return lambda a, b: np.where(np.isnan(a) | np.isnan(b), holds, compared(a, b))[()]


def type_of(value: Any) -> Any:
    """The scalar type of a NumPy value."""
    return np.asarray(value).dtype.type
