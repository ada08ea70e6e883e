"""What a kernel's text declares: bindings, the struct of scalars, the workgroup. Knows no language."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from graphml_gpu.language.types import ValueType


class TextError(Exception):
    """What is wrong in a text. line: where, counted from 1; None: nowhere in particular."""

    def __init__(self, reason: str, line: int | None = None) -> None:
        super().__init__(reason if line is None else f"line {line} of the text: {reason}")


@dataclass(frozen=True)
class TextBuffer:
    """A buffer that a text declares. written: whether as one that it may write. begin, end: where in it."""

    name: str
    element: ValueType
    written: bool
    begin: int
    end: int


@dataclass(frozen=True)
class TextHeader:
    """The declarations of a text.

    buffers: in the order of their bindings. fields: (name, kind) of the struct of the scalars, in order.
    params: (begin, end) of the declaration of the struct's binding. group: the size of the workgroup, None
    where the text does not say it. shared_bytes: of a workgroup's memory; None where it is not known here.
    """

    buffers: tuple[TextBuffer, ...]
    fields: tuple[tuple[str, str], ...]
    params: tuple[int, int]
    group: tuple[int, int, int] | None
    shared_bytes: int | None


_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)


def without_comments(text: str) -> str:
    """The text with blanks for comments: places and lines are the same."""
    return _COMMENT.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


def line_of(text: str, at: int) -> int:
    """The line of a place in a text."""
    return text.count("\n", 0, at) + 1


def uses(code: str, name: str) -> Iterator[re.Match[str]]:
    """Where a text without comments has a name that is no member of anything."""
    return re.finditer(rf"(?<![\w.@]){re.escape(name)}(?!\w)", code)


def product(text: str, known: Mapping[str, str]) -> int | None:
    """The value of numbers and names of constants with `*` between them; None for anything else."""
    total = 1
    for word in text.split("*"):
        number = re.fullmatch(r"(\d+)[uUi]?", known.get(word.strip(), word.strip()))
        if number is None:
            return None
        total *= int(number[1])
    return total


def sizes(text: str, values: str, line: int, named: re.Pattern[str]) -> tuple[int, int, int]:
    """The size of a workgroup of one to three numbers, or names of constants.

    named: finds (name, number) of the constants that a text declares.
    """
    known = dict(named.findall(text))
    products = [product(dim, known) for dim in values.split(",") if dim.strip()]
    numbers = [size for size in products if size is not None]
    if not 1 <= len(products) == len(numbers) <= 3:
        raise TextError(f"wanted a workgroup of one to three whole numbers; got ({values.strip()})", line)
    x, y, z = [*numbers, 1, 1][:3]
    return x, y, z
