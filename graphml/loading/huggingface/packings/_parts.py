"""The stored parts of one packed matrix, checked: names, dtypes, shapes and scales that are numbers.

Knows how numbers are stored; nothing of what a packing makes of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphml.errors import WeightsError
from graphml.weights.safetensors import StoredTensor

Floats = NDArray[np.float32]
Shape = tuple[int | None, ...]
"""Sizes, None for any."""
FLOATS = ("F32", "F16", "BF16")
FP8 = ("F8_E4M3", "F8_E5M2")
WHOLE = {"I8": "i1", "U8": "u1", "I16": "<i2", "I32": "<i4", "I64": "<i8"}


class StoredParts:
    """The parts of a matrix, by what their names end in.

    name: of the matrix; stem: what the parts' names begin with.
    """

    def __init__(self, path: Path, name: str, stem: str, of: Mapping[str, StoredTensor]) -> None:
        self.path = path
        self.name = name
        self._stem = stem
        self._of = of
        self._used: set[str] = set()

    def __contains__(self, end: str) -> bool:
        return end in self._of

    def error(self, text: str) -> WeightsError:
        """The error for parts that do not fit."""
        return WeightsError(f"{self.path}: {self.name[:200]}: {text}")

    def wrong(self, end: str, wanted: str, got: object) -> WeightsError:
        """The error for one part, which it names."""
        place = f"{self.path}: tensor {(self._stem + end)[:200]!r}"
        return WeightsError(f"{place}: wanted {wanted}; got {str(got)[:200]}")

    def part(self, end: str, dtypes: tuple[str, ...], *shapes: Shape) -> StoredTensor:
        """A part that must be there, of one of these dtypes and of one of these shapes."""
        wanted = " or ".join(dtypes) + (" " + " or ".join(map(_shown, shapes)) if shapes else "")
        stored = self._of.get(end)
        self._used.add(end)
        if stored is None:
            there = ", ".join((self._stem + other)[-120:] for other in sorted(self._of))
            raise self.wrong(end, wanted, f"no such tensor beside {there}")
        if stored.dtype not in dtypes or (shapes and not any(_fits(stored.shape, of) for of in shapes)):
            raise self.wrong(end, wanted, f"{stored.dtype} {list(stored.shape)}")
        if 0 in stored.shape:
            raise self.wrong(end, "sizes above 0", list(stored.shape))
        return stored

    def check_all_used(self) -> None:
        """Refuse a part that the packing has no use for."""
        unused = sorted(self._of.keys() - self._used)
        if unused:
            raise self.wrong(unused[0], "no such tensor in this packing", self._of[unused[0]].dtype)

    def whole_numbers(self, end: str, dtypes: tuple[str, ...], *shapes: Shape) -> NDArray[Any]:
        """A part of whole numbers."""
        return whole_numbers(self.part(end, dtypes, *shapes))

    def scales(self, end: str, *shapes: Shape, dtypes: tuple[str, ...] = FLOATS) -> Floats:
        """A part of scales as float32; U8 and F8_E8M0 are exponents of 2. None may be NaN or infinite."""
        stored = self.part(end, dtypes, *shapes)
        values = float_values(stored)
        if not bool(np.isfinite(values).all()):
            place = np.unravel_index(int(np.argmin(np.isfinite(values))), values.shape)
            raise self.wrong(end, "finite scales", f"{values[place]} at {list(map(int, place))}")
        return values

    def factor(self, end: str) -> np.float32:
        """A part that is one scale above 0."""
        values = self.scales(end)
        if values.size != 1 or not values.reshape(-1)[0] > 0:
            got = list(values.shape) if values.size != 1 else values.reshape(-1)[0]
            raise self.wrong(end, "one scale above 0", got)
        return np.float32(values.reshape(-1)[0])

    def inverse(self, end: str, factor: np.float32) -> np.float32:
        """1 / a factor, which that part holds."""
        with np.errstate(over="ignore"):
            inverse = np.float32(1) / factor
        if not np.isfinite(inverse):
            raise self.wrong(end, "a scale whose inverse is finite", factor)
        return np.float32(inverse)


def whole_numbers(stored: StoredTensor) -> NDArray[Any]:
    """The whole numbers of a tensor."""
    return np.frombuffer(stored.data.tobytes(), WHOLE[stored.dtype]).reshape(stored.shape)


def float_values(stored: StoredTensor) -> Floats:
    """The numbers of a tensor of floats as float32; U8 and F8_E8M0 are exponents of 2."""
    if stored.dtype in FP8:
        return fp8_table(stored.dtype)[stored.data].reshape(stored.shape)
    if stored.dtype in ("U8", "F8_E8M0"):
        return POWERS[stored.data].reshape(stored.shape)
    kind = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}[stored.dtype]
    array = np.frombuffer(stored.data.tobytes(), kind).reshape(stored.shape)
    if stored.dtype == "BF16":
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float32)


def fp8_table(dtype: str) -> Floats:
    """The value of each byte of E4M3, which has no infinities, or E5M2 (arXiv:2209.05433)."""
    mantissa_bits, bias = (3, 7) if dtype == "F8_E4M3" else (2, 15)
    code = np.arange(256)
    exponent, mantissa = (code & 127) >> mantissa_bits, code & ((1 << mantissa_bits) - 1)
    fraction = mantissa / (1 << mantissa_bits)
    value = np.where(exponent, (1 + fraction) * 2.0 ** (exponent - bias), fraction * 2.0 ** (1 - bias))
    if dtype == "F8_E4M3":
        value[code & 127 == 127] = np.nan
    else:
        value[(exponent == 31) & (mantissa == 0)] = np.inf
        value[(exponent == 31) & (mantissa > 0)] = np.nan
    return np.where(code > 127, -value, value).astype(np.float32)


def _powers() -> Floats:
    """The value of each byte of E8M0: 2^(e - 127), NaN for 255 (OCP's microscaling formats)."""
    values = np.ldexp(np.float32(1), np.arange(256) - 127).astype(np.float32)
    values[255] = np.nan
    return values


with np.errstate(over="ignore"):
    POWERS = _powers()


def _fits(shape: tuple[int, ...], wanted: Shape) -> bool:
    return len(shape) == len(wanted) and all(
        size is None or size == extent for extent, size in zip(shape, wanted, strict=True)
    )


def _shown(shape: Shape) -> str:
    return f"[{', '.join('any' if size is None else str(size) for size in shape)}]"
