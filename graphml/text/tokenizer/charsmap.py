"""SentencePiece's precompiled table of replacements: a double array that finds the longest known prefix.

The blob is a little-endian u32 with the array's size in bytes, the array of u32 units, then replacement
texts, each ended by a zero byte. A unit holds a base offset (bits 10-30, eight times as far if bit 9 is
set), whether a text ends there (bit 8) and the byte that leads to it (bits 0-7); a unit reached through an
end contains the offset of its replacement. Knows nothing of vocabularies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from graphml.errors import TokenizerError

KEY: Final = "tokenizer.ggml.precompiled_charsmap"
MAX_PREFIX: Final = 256  # bytes; real keys have a dozen, a hostile table must not make the search endless


@dataclass(frozen=True)
class Charsmap:
    """The table: units of the double array and the replacement texts."""

    units: Sequence[int]
    replacements: bytes

    def longest(self, text: bytes, at: int) -> tuple[bytes, int] | None:
        """Return the replacement of the longest prefix of text[at:], and its end; None if none is known."""
        end, place = at, 0
        node = _base(self._unit(0))
        for position in range(at, min(len(text), at + MAX_PREFIX)):
            byte = text[position]
            node ^= byte
            unit = self._unit(node)
            if byte == 0 or unit & 0x8000_00FF != byte:
                break
            node ^= _base(unit)
            if unit & 0x100:
                end, place = position + 1, self._unit(node) & 0x7FFF_FFFF
        if end == at:
            return None
        stop = self.replacements.find(0, place)
        if stop < 0:
            raise TokenizerError(f"{KEY}: no text ends after byte {place} of {len(self.replacements)}")
        return self.replacements[place:stop], end

    def _unit(self, index: int) -> int:
        if index >= len(self.units):
            raise TokenizerError(f"{KEY}: unit {index} is wanted, the table has {len(self.units)}")
        return self.units[index]


def _base(unit: int) -> int:
    return (unit >> 10) << ((unit & 0x200) >> 6)


def read_charsmap(values: Sequence[int]) -> Charsmap:
    """Make a table from its bytes, signed or not; TokenizerError if they are cut short."""
    blob = np.asarray(values, np.int64).astype(np.uint8).tobytes()
    size = int.from_bytes(blob[:4], "little")
    if len(blob) < 4 or not 4 <= size < len(blob) - 4:
        raise TokenizerError(
            f"{KEY}: a table of {size} bytes and texts behind it are wanted, got {len(blob)} bytes in all"
        )
    units = np.frombuffer(blob, "<u4", size // 4, offset=4)
    return Charsmap(units.tolist(), blob[4 + size :])
