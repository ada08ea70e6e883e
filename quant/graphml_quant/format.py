"""What a format is: a block layout with a name, a decoder and, where there is one, an encoder.

`Format` is the value that every format file of this package defines once; `dequantize` and `quantize` are
the checked doors through which whole tensors pass. Knows nothing of files, graphs or backends, and no
single format by name.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from mmap import mmap
from typing import Literal

import numpy as np
from numpy.typing import NDArray

RawBytes = bytes | bytearray | memoryview | mmap | NDArray[np.uint8]

# Elements decoded or encoded at a time. It bounds the temporaries to a few MB, however large the tensor, and
# is the fastest over all formats: a quarter of it takes 25 % longer, a tensor of 1 Mi at once 40 % longer.
_CHUNK_ELEMENTS = 1 << 17


class FormatError(ValueError):
    """A format that is not known, or data whose size, type or values do not suit the format."""


@dataclass(frozen=True)
class Format:
    """One way to store numbers: rows are cut into blocks, and each block becomes a fixed number of bytes.

    `name` is ggml's name in lower case ("q8_0", "iq2_xxs", "f16") and `ggml_type` its number in GGUF files.
    `decode` turns uint8 [n_blocks, block_bytes], of any strides and any content, into a new float32
    [n_blocks, block_elements] without warnings: the bits of ggml's scalar decoder, a NaN's payload aside.
    `encode` turns float32 [n_blocks, block_elements] into uint8 [n_blocks, block_bytes]; None where it is
    not written here. `importance` says what a weight for each column's squared errors is to the encoder of
    files: "unused", "used", or "needed". `activation` names the format that ggml converts an activation to
    when it is multiplied with a weight of this one; None means that such a product is taken in float32, or
    never (ggml has an f16 weight meet f16 activations; these stay as they are here, at no cost and more
    exact).
    """

    name: str
    ggml_type: int
    block_elements: int
    block_bytes: int
    decode: Callable[[NDArray[np.uint8]], NDArray[np.float32]] = field(repr=False)
    encode: Callable[[NDArray[np.float32]], NDArray[np.uint8]] | None = field(default=None, repr=False)
    activation: str | None = None
    importance: Literal["unused", "used", "needed"] = "unused"

    @property
    def bits_per_element(self) -> float:
        """The stored size of one element, its share of the scales included."""
        return 8 * self.block_bytes / self.block_elements

    def bytes_for(self, n_elements: int) -> int:
        """Return the bytes of `n_elements` in one row; FormatError unless they are whole blocks."""
        if n_elements < 0 or n_elements % self.block_elements:
            raise FormatError(
                f"{self.name}: a row of {n_elements} elements is not whole blocks of {self.block_elements}"
            )
        return n_elements // self.block_elements * self.block_bytes

    def bytes_for_shape(self, shape: Sequence[int]) -> int:
        """Return the bytes of a tensor of NumPy shape `shape`, whose last axis must be whole blocks."""
        if any(extent < 0 for extent in shape):
            raise FormatError(f"{self.name}: shape {tuple(shape)} has a negative extent")
        return math.prod(shape[:-1]) * self.bytes_for(shape[-1] if shape else 1)


def dequantize(format: Format, data: RawBytes, shape: Sequence[int]) -> NDArray[np.float32]:
    """Decode a whole tensor.

    `data` is bytes, any buffer of bytes, or a uint8 array of any shape and strides, read in C order. It
    must hold exactly a tensor of NumPy shape `shape`. Returns a new, writable float32 array of that shape.
    FormatError if the last axis is not whole blocks, or if the sizes differ.
    """
    shape = tuple(int(extent) for extent in shape)
    wanted = format.bytes_for_shape(shape)
    raw = _as_bytes(format, data)
    if raw.size != wanted:
        raise FormatError(f"{format.name}: shape {shape} takes {wanted} bytes, but {raw.size} came")
    blocks = raw.reshape(-1, format.block_bytes)
    values = np.empty((len(blocks), format.block_elements), np.float32)
    for chunk in _chunks(format, len(blocks)):
        values[chunk] = format.decode(blocks[chunk])
    try:
        return values.reshape(shape)
    except ValueError as error:  # an empty tensor with an extent too large for NumPy
        raise FormatError(f"{format.name}: shape {shape} is not a possible array: {error}") from error


def quantize(format: Format, array: NDArray[np.floating]) -> NDArray[np.uint8]:
    """Encode a whole tensor.

    `array` is any float array [..., n] whose last axis is whole blocks; it is rounded to float32 first.
    Returns uint8 [..., bytes of one row], the bytes as a GGUF file holds them. FormatError if the format
    has no encoder, if the last axis is not whole blocks, or if a block format is given a value that is
    not finite: its block could not be decoded again.
    """
    if format.encode is None:
        raise FormatError(f"{format.name} can be decoded, but no encoder is written for it yet")
    array = np.asarray(array)
    if not np.issubdtype(array.dtype, np.floating):
        raise FormatError(f"{format.name}: encoding wants a float array, got {array.dtype}")
    *rows, n_elements = array.shape or (1,)
    row_bytes = format.bytes_for(n_elements)
    with np.errstate(over="ignore", invalid="ignore"):  # a float64 beyond float32 becomes inf, seen below
        values = np.ascontiguousarray(array, np.float32).reshape(-1, format.block_elements)
    blocks = np.empty((len(values), format.block_bytes), np.uint8)
    for chunk in _chunks(format, len(values)):
        if format.block_elements > 1:
            _check_finite(format, values[chunk], array, chunk.start)
        blocks[chunk] = format.encode(values[chunk])
    return blocks.reshape(*rows, row_bytes)


def _as_bytes(format: Format, data: RawBytes) -> NDArray[np.uint8]:
    """View `data` as flat uint8, copying only an array that is not contiguous."""
    if isinstance(data, np.ndarray):
        if data.dtype != np.uint8:
            raise FormatError(f"{format.name}: decoding wants bytes or a uint8 array, got {data.dtype}")
        return np.ascontiguousarray(data).reshape(-1)
    try:
        return np.frombuffer(memoryview(data).cast("B"), np.uint8)
    except (TypeError, ValueError) as error:
        raise FormatError(
            f"{format.name}: decoding wants bytes or a uint8 array, got {type(data).__name__}: {error}"
        ) from error


def _chunks(format: Format, n_blocks: int) -> list[slice]:
    """Cut `n_blocks` into slices of about `_CHUNK_ELEMENTS` elements."""
    step = max(1, _CHUNK_ELEMENTS // format.block_elements)
    return [slice(start, min(start + step, n_blocks)) for start in range(0, n_blocks, step)]


def _check_finite(
    format: Format, values: NDArray[np.float32], array: NDArray[np.floating], first_block: int
) -> None:
    finite = np.isfinite(values)
    if not finite.all():
        flat = first_block * format.block_elements + int(np.argmin(finite))
        place = tuple(int(index) for index in np.unravel_index(flat, array.shape))
        raise FormatError(f"{format.name}: the value at {place} is {array[place]}; block formats want finite")
