"""Rows of any stored format as float32: how a kernel reads weights, tables and caches.

`row_format(name)` has the function that decodes a row; kernels take it from there. The decoders of blocks are
in the files `formats_32`, `formats_k` and `formats_iq`, a function of each format's name.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import graphml_quant
import numpy as np

from graphml_numba.helpers import Array, helper
from graphml_numba.kernels import formats_32, formats_iq, formats_k
from graphml_numba.kernels.numbers import from_bfloat16, from_half

SCRATCH = 32
"""Floats that a decoder wants as scratch."""

_MODULES: tuple[ModuleType, ...] = (formats_32, formats_k, formats_iq)


@dataclass(frozen=True)
class RowFormat:
    """How rows of a format are decoded.

    word: the NumPy type that a row is an array of. decode: `decode(row, out, s)` makes a row's words the
    float32 out; s: float32 [SCRATCH].
    """

    word: type[np.generic]
    decode: Callable[[Array, Array, Array], None]


def has_format(name: str) -> bool:
    """Whether rows of a format can be decoded."""
    return name in ("f32", "f16", "bf16") or any(hasattr(module, name) for module in _MODULES)


@functools.cache
def row_format(name: str) -> RowFormat:
    """The format of a name."""
    if name == "f32":
        return RowFormat(np.float32, _f32)
    if name == "f16":
        return RowFormat(np.uint16, _f16)
    if name == "bf16":
        return RowFormat(np.uint16, _bf16)
    (decode,) = (getattr(module, name) for module in _MODULES if hasattr(module, name))
    layout = graphml_quant.by_name(name)
    return RowFormat(np.uint8, _of_blocks(decode, layout.block_elements, layout.block_bytes))


@helper
def _f32(row: Array, out: Array, s: Array) -> None:
    for i in range(out.shape[0]):
        out[i] = row[i]


@helper
def _f16(row: Array, out: Array, s: Array) -> None:
    for i in range(out.shape[0]):
        out[i] = from_half(row[i])


@helper
def _bf16(row: Array, out: Array, s: Array) -> None:
    for i in range(out.shape[0]):
        out[i] = from_bfloat16(row[i])


def _of_blocks(decode: Callable[[Array, Array, Array], None], elements: int, n_bytes: int) -> Any:
    """The decoder of rows of blocks."""

    @helper
    def decode_blocks(row: Array, out: Array, s: Array) -> None:
        for block in range(row.shape[0] // n_bytes):
            at, first = block * n_bytes, block * elements
            decode(row[at : at + n_bytes], out[first : first + elements], s)

    return decode_blocks
