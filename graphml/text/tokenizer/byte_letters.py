"""GPT-2's letters for bytes: each byte as one printable character. A table alone."""

from __future__ import annotations

from typing import Final


def _byte_letters() -> str:
    """Each byte's letter: itself if it is printable Latin-1, else the next one from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    rest = iter(range(0x100, 0x200))
    return "".join(chr(byte if byte in printable else next(rest)) for byte in range(256))


BYTE_LETTERS: Final = _byte_letters()
LETTER_BYTES: Final = {letter: byte for byte, letter in enumerate(BYTE_LETTERS)}
