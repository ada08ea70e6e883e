"""The literal texts that a structure allows next: keys, words of an enum, choices, up to where text is free.

Read byte by byte from a place in a structure, without its tokens. Knows bytes; nothing of tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

MAX_LENGTH: Final = 32
"""Bytes of a literal that are read ahead: longer than tokens of real vocabularies, but for spaces."""
MAX_BRANCHING: Final = 20
"""From this length on a literal is read only as far as one text is forced."""
MAX_PLACES: Final = 128
"""Places that are read; what comes behind more of them counts as free."""
MAX_WAYS: Final = 64
_ANY: Final = frozenset(range(256))
_NOTHING: Final = frozenset[int]()
_SPACE: Final = ord(" ")
SPACES: Final = frozenset(b" \t\r\n")
_CLASSES: Final = tuple(
    frozenset(letters) for letters in (b"0123456789", bytes(range(97, 123)), bytes(range(65, 91)))
)


UNREADABLE: Final = (range(256), True)
"""The ways where a limit of a structure is reached: any text may come, as far as reading ahead goes."""


class ByteWalk(Protocol):
    """A place in a structure that is moved by bytes, apart from the text that is generated."""

    def forced(self) -> bytes:
        """The only bytes by which the text can go on; none where it may end or there are several."""
        ...

    def ways(self) -> tuple[Sequence[int], bool]:
        """The bytes that may come next, and whether the text may stop here: at its end or a control token.

        `UNREADABLE` where that cannot be told.
        """
        ...

    def go(self, data: bytes) -> None:
        """Go on by bytes that are allowed."""
        ...

    def back(self, n: int) -> None:
        """Take back the last n bytes."""
        ...


class Literal(NamedTuple):
    """A text that may come next.

    stops: the text may stop behind it. free: the bytes with which free text may begin behind it.
    """

    text: bytes
    stops: bool = False
    free: frozenset[int] = _NOTHING


def literal_texts(walk: ByteWalk, settled: Callable[[bytes], bool] = lambda _: False) -> list[Literal] | None:
    """The literals from a place on; None where text is free there, or where the text can only stop.

    settled: whether a text that goes on in several ways is read far enough.

    Whitespace of several kinds counts as free text, but for one space that comes first; so do digits, classes
    of letters, and bytes that may follow each other in any order. The walk comes back to where it was.
    """
    literals: list[Literal] = []
    places = 0
    path = bytearray()
    todo = [(0, b"", _NOTHING)]  # the length of the path before a step, the step, and the ways there
    while todo:
        length, step, ways_before = todo.pop()
        if len(path) > length:
            walk.back(len(path) - length)
            del path[length:]
        run = step
        if step:
            walk.go(step)
        if more := walk.forced()[: MAX_LENGTH - length - len(step)]:
            walk.go(more)
            run += more
        path += run
        places += 1
        text = bytes(path)
        if len(path) >= MAX_BRANCHING or places > MAX_PLACES or settled(text):
            literals.append(Literal(text, True, _ANY))
            continue
        listed, stops = walk.ways()
        ways = frozenset(listed)
        free = ways if run == step and ways == ways_before else _free(ways)
        if not text and ways != free and _SPACE in free and _is_one_space(walk):
            free -= {_SPACE}
        if text and (stops or free):
            literals.append(Literal(text, stops, free))
        elif free == ways:
            return None
        elif free:
            literals.append(Literal(text, False, free))
        todo += [(len(path), bytes([byte]), ways) for byte in ways - free]
    if path:
        walk.back(len(path))
    return literals


def _is_one_space(walk: ByteWalk) -> bool:
    """Whether no more whitespace may follow a space that comes next."""
    walk.go(b" ")
    behind, _ = walk.ways()
    walk.back(1)
    return not SPACES.intersection(behind)


def _free(ways: frozenset[int]) -> frozenset[int]:
    """Which of the bytes that may come next begin free text."""
    if len(ways) > MAX_WAYS or any(letters <= ways for letters in _CLASSES):
        return ways
    spaces = SPACES.intersection(ways)
    return spaces if len(spaces) > 1 else _NOTHING
