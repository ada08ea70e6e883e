"""Offsets of the strings of a GGUF string array: a fast scan over their length fields.

A string is a little-endian length and that many bytes, so its offset is known only after all before it. A
vocabulary has hundreds of thousands; a Python loop over them takes longer than everything else in opening a
file. So a block of the file is searched at once for bytes that look like the zero bytes of length fields, and
the guess is then verified: the first must be at the scan's position, and each must begin at the end of the
one before it. Other strings are scanned one by one. The result is exact for any content.

Knows nothing of keys or of GGUF beyond the layout of a string.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from graphml.weights.filemap import Bytes

BLOCK_WORDS = 1 << 16  # 256 KiB of file per guess: the temporaries stay in the second-level cache
FEW = 64  # fewer strings than this are scanned one by one; also the first length of a one-by-one burst
WORTH_A_GUESS = 1024  # verified strings from which on a guess was quicker than a scan one by one
LONGEST_BURST = 1 << 16
# How many low bytes of the word after a zero word belong to the length field, by the zero bytes before that
# word.
TAIL_MASKS = np.array([0xFFFFFF, 0xFFFF, 0xFF, 0], np.uint32)


class StringRun(NamedTuple):
    """Neighbouring strings: the start of the text of each, and its length in bytes; both int64 [n]."""

    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]

    @property
    def end(self) -> int:
        """The position after the last string."""
        return int(self.starts[-1] + self.lengths[-1])


class OutOfFileError(ValueError):
    """String `index` of the array does not fit into the file."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.index = index


def string_runs(data: Bytes, start: int, count: int, length_bytes: int = 8) -> Iterator[StringRun]:
    """Scan `count` strings from byte `start` of `data` (a whole file, uint8); yields runs in order.

    `length_bytes` is 8, or 4 in GGUF version 1. Raises OutOfFileError at the first string that ends after
    the file.
    """
    done, position, burst, guessing = 0, start, FEW, length_bytes == 8
    while done < count:
        left = count - done
        run = _guess(data, position, left) if guessing and left >= FEW else None
        if run is None:
            # If guessing fails, longer and longer stretches are scanned one by one between the attempts.
            run = _one_by_one(data, position, min(left, burst), length_bytes, done)
            burst = min(2 * burst, LONGEST_BURST)
            guessing = length_bytes == 8
        else:
            guessing = len(run.starts) >= WORTH_A_GUESS
            burst = FEW if guessing else burst
        yield run
        done, position = done + len(run.starts), run.end


def _one_by_one(data: Bytes, position: int, count: int, length_bytes: int, first_index: int) -> StringRun:
    read = struct.Struct("<Q" if length_bytes == 8 else "<I").unpack_from
    buffer, size = data.data, len(data)
    starts, lengths = [], []
    for index in range(count):
        text = position + length_bytes
        if text > size:
            raise OutOfFileError(first_index + index)
        length = read(buffer, position)[0]
        position = text + length
        if position > size:
            raise OutOfFileError(first_index + index)
        starts.append(text)
        lengths.append(length)
    return StringRun(np.array(starts, np.int64), np.array(lengths, np.int64))


def _guess(data: Bytes, position: int, count: int) -> StringRun | None:
    """Return the verified strings at the start of the next block, or None; `position` is that of a length."""
    words = data[: len(data) & ~3].view("<u4")
    first = position >> 2
    block = words[first : first + BLOCK_WORDS]
    # The seven upper bytes of a short length are zero, so exactly one aligned word within them is zero.
    zeros = np.flatnonzero(block[1:-1] == 0)
    if not len(zeros):
        return None
    before, after = block[zeros], block[zeros + 2]
    # `gap` zero bytes precede the zero word; the byte before them is the lowest of the field: the length.
    gap = (before < 1 << 24).view(np.uint8) + (before < 1 << 16) + (before < 1 << 8)
    lengths = (before >> (24 - 8 * gap.astype(np.uint32))).astype(np.int64)
    fields = 4 * (first + zeros) + 3 - gap
    is_field = (after & TAIL_MASKS[gap]) == 0
    ends = fields + 8 + lengths
    if fields[0] != position or not is_field[0]:
        return None
    proven = (ends[:-1] == fields[1:]) & is_field[1:]
    n = 1 + (len(proven) if proven.all() else int(proven.argmin()))
    n = min(n, count)
    if ends[n - 1] > len(data):
        n -= 1
    return StringRun(fields[:n] + 8, lengths[:n]) if n else None
