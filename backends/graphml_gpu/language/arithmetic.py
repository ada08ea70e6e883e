"""The arithmetic of devices in NumPy scalars, for the emulator: the functions that its texts call."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np

from graphml_gpu.language.features import Features
from graphml_gpu.language.scalars import conversion, small

_LOW_FIVE = np.uint32(31)


def types(features: Features) -> dict[str, Any]:
    """Kind -> NumPy scalar type; halves are computed in f32 where the device has no arithmetic for them."""
    half = np.float16 if features.f16 else np.float32
    return {"f32": np.float32, "f16": half, "i32": np.int32, "u32": np.uint32, "bool": np.bool_}


def across(what: str, values: Sequence[Any], by: Sequence[Any]) -> list[Any]:
    """What each lane of a subgroup gets; from a lane that is not there, anything. by: of each lane."""
    if what in ("xor", "broadcast"):
        others = (lane ^ int(mask) if what == "xor" else int(mask) for lane, mask in enumerate(by))
        return [
            values[other] if other < len(values) else _garbage(values[lane])
            for lane, other in enumerate(others)
        ]
    pairs: Mapping[str, Callable[[Any, Any], Any]] = {"sum": operator.add, "max": np.fmax}
    return [reduce(pairs[what], values)] * len(values)


def _garbage(value: Any) -> Any:
    garbage = np.asarray(value)
    return np.full_like(garbage, np.nan if garbage.dtype.kind == "f" else 0x5EED)[()]


def _views(scalar: Any) -> tuple[Any, dict[Any, Any]]:
    """Room for a scalar, and what its bits are as others of its size."""
    room = np.zeros(1, scalar)
    others = (np.float32, np.int32, np.uint32, np.float16)
    return room, {other: room.view(other) for other in others if np.dtype(other).itemsize == room.itemsize}


class Runtime:
    """The functions of a text, for one choice of types."""

    def __init__(self, types: Mapping[str, Any]) -> None:
        self.types = types
        self._words = {scalar: _views(scalar) for scalar in types.values()}
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

    def count(self, begin: Any, end: Any, step: Any) -> Iterable[Any]:
        """The values of a `for`."""
        values = range(int(begin), int(end), int(step))
        kind: Any = type(begin)
        known = small(kind)
        inside = not values or (min(values[0], values[-1]) >= 0 and max(values[0], values[-1]) < len(known))
        return map(known.__getitem__ if inside else kind, values)

    def constant(self, vector: Any) -> Any:
        """A vector that several places of a text share."""
        vector.flags.writeable = False
        return vector

    def vector(self, scalar: Any, *values: Any) -> Any:
        """Scalars of that type as a vector."""
        return np.array(values, scalar)

    def divide(self, a: Any, b: Any) -> Any:
        """Integers, cut towards zero; by zero: what it is on most devices, all ones."""
        quotient = np.where(b == 0, -1, np.trunc(np.true_divide(a, np.where(b == 0, 1, b))))
        return quotient.astype(np.int64).astype(np.asarray(a).dtype)[()]

    def remainder(self, a: Any, b: Any) -> Any:
        """What is left of the division cut towards zero."""
        return a - self.divide(a, b) * b

    def u32_divide(self, a: Any, b: Any) -> Any:
        """`divide` of scalars."""
        return a // b if b else ~b

    def u32_remainder(self, a: Any, b: Any) -> Any:
        """`remainder` of scalars."""
        return a % b if b else a

    def i32_divide(self, a: Any, b: Any) -> Any:
        """`divide` of scalars."""
        if not b:
            return ~b
        floor = a // b
        return floor + (floor < 0 and floor * b != a)

    def i32_remainder(self, a: Any, b: Any) -> Any:
        """`remainder` of scalars."""
        return a - self.i32_divide(a, b) * b

    def u32_shift_left(self, a: Any, b: Any) -> Any:
        """`shift_left` of scalars."""
        return a << (b & _LOW_FIVE)

    def u32_shift_right(self, a: Any, b: Any) -> Any:
        """`shift_right` of scalars."""
        return a >> (b & _LOW_FIVE)

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

    def scalar_min(self, a: Any, b: Any) -> Any:
        """The smaller of scalars; of a number and a NaN the number."""
        return a if a <= b or b != b else b

    def scalar_max(self, a: Any, b: Any) -> Any:
        """The larger of scalars; of a number and a NaN the number."""
        return a if a >= b or b != b else b

    def scalar_clamp(self, value: Any, low: Any, high: Any) -> Any:
        """`clamp` of scalars."""
        raised = low if value < low else value
        return high if raised > high else raised

    def scalar_inverse_sqrt(self, value: Any) -> Any:
        """`inverse_sqrt` of a scalar."""
        return type(value)(1) / np.sqrt(value)

    def scalar_fma(self, a: Any, b: Any, c: Any) -> Any:
        """`fma` of scalars."""
        return type(a)(float(a) * float(b) + float(c))

    def scalar_bitcast(self, value: Any, kind: Any) -> Any:
        """`bitcast` of a scalar."""
        words, views = self._words[type(value)]
        words[0] = value
        return views[kind][0]

    conversion = staticmethod(conversion)
    exp, exp2, log, log2 = (staticmethod(f) for f in (np.exp, np.exp2, np.log, np.log2))
    sin, cos, sqrt = (staticmethod(f) for f in (np.sin, np.cos, np.sqrt))
    floor, ceil, trunc, round = (staticmethod(f) for f in (np.floor, np.ceil, np.trunc, np.rint))
    pow, min, max = (staticmethod(f) for f in (np.power, np.fmin, np.fmax))
    abs = staticmethod(np.abs)
    isnan, isinf = staticmethod(np.isnan), staticmethod(np.isinf)
    below, most, above, least = map(staticmethod, (operator.lt, operator.le, operator.gt, operator.ge))
    equal, unlike = staticmethod(operator.eq), staticmethod(operator.ne)


class NoNanRuntime(Runtime):
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
