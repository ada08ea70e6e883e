"""Element types: plain numbers and quantised block formats alike.

Knows the size of elements and their arrays in NumPy; nothing of the meaning of block formats.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import graphml_quant
import numpy as np

from graphml.errors import GraphError


@dataclass(frozen=True)
class DType:
    """An element type.

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


@functools.cache
def dtype(name: str) -> DType:
    """The type called `name` ("f32", "i32", "q4_1", ...); `GraphError` lists the known names."""
    if name in _PLAIN:
        kind: np.dtype[np.generic] = np.dtype(_PLAIN[name])
        return DType(name, 1, kind.itemsize, kind)
    formats = graphml_quant.formats()
    if name not in formats:
        raise GraphError(f"unknown dtype {name!r}; known: {', '.join(sorted({*_PLAIN, *formats}))}")
    return DType(name, formats[name].block_elements, formats[name].block_bytes, None)


F32 = dtype("f32")
F16 = dtype("f16")
I32 = dtype("i32")
PARTS = DType("parts", 1, 1, None)  # of a node with several results; `Type.parts` has their types
