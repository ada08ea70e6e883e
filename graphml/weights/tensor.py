"""A tensor of a model file: its name, type and shape, and its bytes, which are in the map.

Also the table of tensor types: the formats of graphml_quant and the plain numbers. Knows nothing of file
layouts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

import graphml_quant
import numpy as np
from numpy.typing import DTypeLike, NDArray

from graphml.errors import WeightsError
from graphml.other_attributes import NamesOthers
from graphml.weights.filemap import Bytes


@dataclass(frozen=True)
class TensorType:
    """How the elements of a tensor are stored: `block_elements` of them take `block_bytes` bytes."""

    name: str
    block_elements: int
    block_bytes: int


# ggml's numbers of the types that are plain little-endian numbers.
PLAIN_TYPES = MappingProxyType({24: "i8", 25: "i16", 26: "i32", 27: "i64", 28: "f64"})
PLAIN_DTYPES = MappingProxyType({"i8": "<i1", "i16": "<i2", "i32": "<i4", "i64": "<i8", "f64": "<f8"})


def tensor_type(ggml_type: int) -> TensorType:
    """Return the type of a ggml number; graphml_quant.FormatError, with the known formats, for another."""
    plain = PLAIN_TYPES.get(ggml_type)
    return type_named(graphml_quant.by_ggml_type(ggml_type).name if plain is None else plain)


def type_named(name: str) -> TensorType:
    """Return the type of a name that a tensor has; graphml_quant.FormatError for another."""
    if name in PLAIN_DTYPES:
        return TensorType(name, 1, np.dtype(PLAIN_DTYPES[name]).itemsize)
    format = graphml_quant.by_name(name)
    return TensorType(format.name, format.block_elements, format.block_bytes)


@dataclass(frozen=True, eq=False, repr=False)
class Tensor(NamesOthers):
    """One tensor of a model file; `numpy.asarray(tensor)` and `torch.from_dlpack(tensor)` decode it.

    `dtype` is ggml's name in lower case ("q4_1", "f32", "i32"). `shape` is in NumPy order, the reverse of
    GGUF's: a weight is [out, in]. `data` is a read-only uint8 [n_bytes] view on the mapped file; a
    requantised tensor is in memory of its own, `mapped` False. It is empty if only the header was read.
    """

    _same: ClassVar = {
        **dict.fromkeys(("dequantize", "to_numpy", "array", "float"), "numpy"), "nbytes": "n_bytes",
        **dict.fromkeys(("tensor_type", "type", "quantization", "format"), "dtype"),
    }  # fmt: skip
    _instead: ClassVar = {
        "[]": "numpy()[...]", "()": "numpy()", **dict.fromkeys(("size", "numel"), "n_elements, or shape"),
        "ndim": "len(tensor.shape)",
        **dict.fromkeys(
            ("tolist", "astype", "mean", "std", "min", "max", "sum", "abs", "T", "transpose", "reshape",
             "flatten", "detach", "cpu", "copy", "values", "value", "item"), "numpy()"
        ),
        **dict.fromkeys(("torch", "to", "cuda"), "torch.from_dlpack(tensor)"),
    }  # fmt: skip

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: Bytes
    mapped: bool = True

    @property
    def n_bytes(self) -> int:
        """The size in bytes, by type and shape."""
        kind = type_named(self.dtype)
        return self.n_elements // kind.block_elements * kind.block_bytes

    @property
    def n_elements(self) -> int:
        """The product of the shape."""
        return math.prod(self.shape)

    def numpy(self) -> NDArray[Any]:
        """Decode into an array of `shape`.

        float32 for f32, f16, bf16 and every quantised format, a new array each time; for the plain types
        (i8 i16 i32 i64 f64) an array of that type, a read-only view on the map. WeightsError if only the
        header of the file was read.
        """
        if self.data.nbytes != self.n_bytes:
            raise WeightsError(
                f"tensor {self.name!r}: its data were not read, but the header of the file alone"
            )
        if self.dtype in PLAIN_DTYPES:
            return self.data.view(PLAIN_DTYPES[self.dtype]).reshape(self.shape)
        return graphml_quant.dequantize(graphml_quant.by_name(self.dtype), self.data, self.shape)

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        """What `numpy` returns, for NumPy's functions; copy False is a ValueError where it is a new array."""
        array = self.numpy()
        is_view = self.dtype in PLAIN_DTYPES and dtype in (None, array.dtype)
        if copy is False and not is_view:
            raise ValueError(f"tensor {self.name!r} of {self.dtype} is decoded: wanted copy=True or None")
        return array.astype(dtype or array.dtype, copy=bool(copy) and is_view)

    def __dlpack__(self, **options: Any) -> Any:
        """The decoded array for PyTorch and others, theirs alone."""
        return np.array(self).__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        """The processor's memory."""
        return 1, 0

    def __repr__(self) -> str:
        return f"Tensor({self.name!r}, {self.dtype} {list(self.shape)}, {self.n_bytes:,} bytes)"
