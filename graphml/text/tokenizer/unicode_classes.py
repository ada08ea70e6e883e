"""General category of every code point in Unicode 15.1, and texts reduced to one byte per code point.

A vocabulary's splitting rules were trained with one Unicode version and must not move with Python's, so
the ranges are kept in `unicode_15_1.npz`: `starts`, the first code point of each range, and `groups`, its
category's first letter (U for unassigned). The rules only use categories; on a reduced text they are
byte-wide regular expressions. Knows nothing of vocabularies.
"""

from __future__ import annotations

import unicodedata
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

CODE_POINTS: Final = 0x110000
WHITESPACE: Final = (
    *range(0x09, 0x0E), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F,
    0x3000,
)  # fmt: skip
HAN_RANGES: Final = (
    (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F), (0x2B820, 0x2CEAF), (0x2CEB0, 0x2EBEF), (0x2F800, 0x2FA1F),
)  # fmt: skip

# The byte of a code point beyond ASCII in a reduced text; ASCII is unchanged.
REDUCED_SPACE: Final = 0x0B
REDUCED_OTHER: Final = 0xD0
REDUCED: Final = {"N": 0xD1, "L": 0xD2, "P": 0xD3, "M": 0xD4, "S": 0xD5}
REDUCED_HAN_LETTER: Final = 0xD6
REDUCED_HAN_OTHER: Final = 0xD7

# ASCII members of a category in a byte-wide bracket expression; the reduced bytes are added to them.
ASCII_MEMBERS: Final = {"N": "0-9", "P": r"!-#%-*,-/:;?@\[-\]_{}", "M": "", "S": r"$+<->\^`|~"}
LETTERS: Final = dict.fromkeys(("L", "Lu", "Ll", "Lt", "Lm", "Lo"), "A-Za-z") | {
    "LetterNotLower": "A-Z",
    "LetterNotUpper": "a-z",
}


@cache
def groups() -> npt.NDArray[np.uint8]:
    """Return [CODE_POINTS] u8: the ASCII letter L M N P S Z C, or U for an unassigned code point."""
    with np.load(Path(__file__).with_name("unicode_15_1.npz"), allow_pickle=False) as ranges:
        starts, letters = ranges["starts"], ranges["groups"]
    return np.repeat(letters, np.diff(np.append(starts, CODE_POINTS)))


@cache
def _reduction(han: bool) -> npt.NDArray[np.uint8]:
    """Return [CODE_POINTS] u8: the byte of each code point in a reduced text."""
    table = np.full(CODE_POINTS, REDUCED_OTHER, np.uint8)
    letters = groups()
    for letter, byte in REDUCED.items():
        table[letters == ord(letter)] = byte
    table[list(WHITESPACE)] = REDUCED_SPACE
    if han:
        for first, last in HAN_RANGES:
            is_letter = letters[first : last + 1] == ord("L")
            table[first : last + 1] = np.where(is_letter, REDUCED_HAN_LETTER, REDUCED_HAN_OTHER)
    table[:128] = np.arange(128)
    return table


def group(character: str) -> str:
    """Return L M N P S Z C, or U for an unassigned code point."""
    return chr(groups()[ord(character)])


def base_character(character: str) -> str:
    """Return the first character of the canonical decomposition: the letter without its accents."""
    # A code point newer than the tables has none, even if Python knows one.
    return character if group(character) == "U" else unicodedata.normalize("NFD", character)[0]


def lowercase(character: str) -> str:
    """Return the one character that is its simple lower case."""
    return character if group(character) == "U" else character.lower()[0]


def code_points(text: str) -> npt.NDArray[np.uint32]:
    """Return [characters] u32; the text must hold no lone surrogate."""
    return np.frombuffer(text.encode("utf-32-le"), "<u4")


def reduce(text: str, han: bool = False) -> bytes:
    """Return one byte per code point; `han`: Chinese characters have a byte of their own."""
    if text.isascii():
        return text.encode("ascii")
    return _reduction(han)[code_points(text)].tobytes()


def category_members(name: str) -> str:
    r"""Return the bracket-expression members of \p{name} in a reduced text.

    Names are L M N P S; two-letter ones of L, which are not distinguished: the reduced text has one byte for
    all letters beyond ASCII; and our own Han, LetterNotHan, LetterNotLower (a-z left out) and
    LetterNotUpper. KeyError for others.
    """
    if name == "Han":
        return f"{chr(REDUCED_HAN_LETTER)}{chr(REDUCED_HAN_OTHER)}"
    wide = chr(REDUCED["L"])
    if name == "LetterNotHan":
        return f"A-Za-z{wide}"
    if name in LETTERS:
        return LETTERS[name] + wide + chr(REDUCED_HAN_LETTER)
    return ASCII_MEMBERS[name] + chr(REDUCED[name])
