"""Element types: plain numbers and quantised block formats alike.

Knows the size of elements and their arrays in NumPy; nothing of the meaning of block formats.
"""

from __future__ import annotations

import functools
import warnings
from dataclasses import dataclass
from typing import Any

import graphml_quant
import numpy as np

from graphml.errors import GraphError, did_you_mean

_ALIASES = {
    **dict.fromkeys(("float32", "fp32", "single", "float"), "f32"),
    **dict.fromkeys(("float64", "fp64", "double"), "f64"),
    **dict.fromkeys(("float16", "fp16", "half"), "f16"), "bfloat16": "bf16",
    **{f"int{bits}": f"i{bits}" for bits in (8, 16, 32, 64)}, "int": "i32", "long": "i64",
}  # fmt: skip
"""Names in other libraries, as ggml, NumPy and PyTorch have them."""


@dataclass(frozen=True, eq=False)
class DType:
    """An element type.

    `==` with a text, or a type of NumPy or PyTorch, is whether that names it: `node.dtype == "float32"`. A
    text that names no type equals none, and a warning says so. In a dict or set it has its own name alone.

    `block_elements` consecutive elements of the last dimension are stored in `block_bytes` bytes. `numpy` is
    the NumPy type of one element; None (block formats, bf16) means that an array is uint8 with its last
    dimension counted in bytes.
    """

    name: str
    block_elements: int
    block_bytes: int
    numpy: np.dtype[np.generic] | None

    def __repr__(self) -> str:
        return self.name

    def __eq__(self, other: object) -> bool:
        if isinstance(other, DType):
            return self is other or (self.name, self.block_bytes) == (other.name, other.block_bytes)
        try:
            return as_dtype(other).name == self.name
        except GraphError as error:
            if isinstance(other, str) and other != self.name:
                warnings.warn(f"dtype == {other!r:.80}: {error}", stacklevel=2)
            return isinstance(other, str) and other == self.name

    def __hash__(self) -> int:
        return hash(self.name)  # NumPy's types take long

    @property
    def is_format(self) -> bool:
        """Whether the elements need a decoder of `graphml_quant` to become numbers."""
        return self.numpy is None

    def bytes_for(self, elements: int) -> int:
        """Bytes of `elements` consecutive elements (a whole number of blocks)."""
        if elements % self.block_elements:
            raise GraphError(f"{self.name} comes in blocks of {self.block_elements}; got {elements} elements")
        return elements // self.block_elements * self.block_bytes


_PLAIN = {
    "f32": np.float32,
    "f64": np.float64,
    "f16": np.float16,
    "i8": np.int8,
    "i16": np.int16,
    "i32": np.int32,
    "i64": np.int64,
}


def as_dtype(value: Any) -> DType:
    """The type that a value names: a text, a type of NumPy or PyTorch, itself; `GraphError` for any other.

    Texts of other libraries are known ("float32", "half"), and capitals ("Q4_0").
    """
    if isinstance(value, DType):
        return value
    if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic)):
        value = np.dtype(value).name
    elif type(value).__module__ == "torch":
        value = str(value).removeprefix("torch.")
    if not isinstance(value, str):
        raise GraphError(f"wanted a dtype, as 'f32', 'q4_0' or numpy.float32; got {value!r:.80}")
    return dtype(value)


def is_dtype(value: Any) -> bool:
    """Whether `as_dtype` knows it."""
    try:
        as_dtype(value)
    except GraphError:
        return False
    return True


@functools.cache
def dtype(name: str) -> DType:
    """The type called `name` ("f32", "i32", "q4_1", ...); `GraphError` names the nearest, or all."""
    lower = name.lower()
    if (own := _ALIASES.get(lower, lower)) != name and own in {*_PLAIN, *graphml_quant.formats()}:
        return dtype(own)
    if name in _PLAIN:
        kind: np.dtype[np.generic] = np.dtype(_PLAIN[name])
        return DType(name, 1, kind.itemsize, kind)
    formats = graphml_quant.formats()
    if name not in formats:
        every = sorted({*_PLAIN, *formats})
        near = did_you_mean(name, every)
        raise GraphError(f"unknown dtype {name!r}{'.' + near if near else '; known: ' + ', '.join(every)}")
    return DType(name, formats[name].block_elements, formats[name].block_bytes, None)


F32 = dtype("f32")
F16 = dtype("f16")
I32 = dtype("i32")
PARTS = DType("parts", 1, 1, None)  # of a node with several results; `Type.parts` has their types
