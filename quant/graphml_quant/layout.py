"""The moves that block layouts share: cutting fields out of blocks, taking packed bits apart and back.

Bytes are little-endian whatever the machine. Knows no single format; a format file composes these.
"""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

_BELOW_HALF = np.nextafter(np.float32(0.5), np.float32(0))
Number = TypeVar("Number", bound=np.number)

# Any 16 bits are a legal scale, so inf * 0 and overflow are ordinary here: as a decorator this keeps a
# decoder or encoder from warning about them.
any_values = np.errstate(invalid="ignore", over="ignore", divide="ignore")


def half(blocks: NDArray[np.uint8], start: int) -> NDArray[np.float32]:
    """Read the float16 at byte `start` of each block: float32 [n_blocks, 1]."""
    return words(blocks, start, start + 2, np.float16).astype(np.float32)


def words(blocks: NDArray[np.uint8], start: int, stop: int, kind: type[Number]) -> NDArray[Number]:
    """Read bytes `start` to `stop` of each block as numbers of `kind`: [n_blocks, count]."""
    stored = np.ascontiguousarray(blocks[:, start:stop]).view(np.dtype(kind).newbyteorder("<"))
    return stored.astype(kind, copy=False)


def as_bytes(values: NDArray[np.number], kind: type[np.number]) -> NDArray[np.uint8]:
    """Round `values` [n_blocks, count] to `kind` and return their bytes, little-endian: [n_blocks, ...]."""
    return np.ascontiguousarray(values.astype(np.dtype(kind).newbyteorder("<"))).view(np.uint8)


def planes(packed: NDArray[np.uint8], width: int) -> NDArray[np.uint8]:
    """Take bytes apart into fields of `width` bits: [..., k] -> [..., 8 // width, k], lowest field first.

    This is the order of most layouts: first the low field of all bytes, then the next field of all.
    """
    count = 8 // width
    fields = np.empty((*packed.shape[:-1], count, packed.shape[-1]), np.uint8)
    for number in range(count):
        np.right_shift(packed, number * width, out=fields[..., number, :])
    fields &= (1 << width) - 1
    return fields


def interleaved(packed: NDArray[np.uint8], width: int) -> NDArray[np.uint8]:
    """Take bytes apart byte by byte: [..., k] -> [..., k * 8 // width], lowest field first."""
    fields = planes(packed, width).swapaxes(-1, -2)
    return fields.reshape(*packed.shape[:-1], -1)


def low_and_high(numbers: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Pack the low four bits of numbers: [n, 2 k] -> [n, k], the first half of a row in the low nibbles."""
    low, high = np.split(numbers, 2, axis=-1)
    return (low & np.uint8(15)) | (high << np.uint8(4))


def fifth_bits(numbers: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Pack bit 4 of each number: [n, k] -> [n, k // 8], the first number in the lowest bit."""
    return np.packbits((numbers >> 4) & 1, axis=-1, bitorder="little")


def scaled(
    numbers: NDArray[np.integer] | NDArray[np.float32], scale: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Multiply small numbers with their scales, which broadcast against them, in float32."""
    values = numbers.astype(np.float32)
    values *= scale
    return values


def inverse(scale: NDArray[np.float32], numerator: float = 1.0) -> NDArray[np.float32]:
    """Return numerator / scale, and 0 where that is not finite: such a block is all zero to its precision."""
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        inverted = np.float32(numerator) / scale
    result: NDArray[np.float32] = np.where(np.isfinite(inverted), inverted, np.float32(0))
    return result


def round_half_away(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Round to the nearest whole number, halves away from zero, as C's roundf does."""
    # Half less its last bit: added to what lies just below a half it does not reach the next whole number,
    # and added to a half the sum itself is rounded up to it.
    rounded: NDArray[np.float32] = np.trunc(values + np.copysign(_BELOW_HALF, values))
    return rounded


def largest(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the value of largest magnitude of each row, with its sign, the first of equals: [n, 1].

    Of a row of zeros it is 0, even where they are negative ones.
    """
    place = np.abs(values).argmax(axis=-1)
    extremes: NDArray[np.float32] = values[np.arange(len(values)), place]
    return extremes[:, None] + np.float32(0)


def smallest(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the smallest value of each row, the first of equals (0 and -0 are): [n, 1]."""
    return np.take_along_axis(values, values.argmin(axis=-1)[:, None], axis=-1)
