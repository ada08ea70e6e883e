"""Names of GGUF files: their ending and the parts of split models, `model-00001-of-00003.gguf`, in any case.

Knows names alone; whether a file of that name exists, or holds what it says, others check.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

ENDING = ".gguf"
_PART = re.compile(
    r"(?P<model>.+)-(?P<number>\d{5})(?P<of>-of-)(?P<count>\d{5})(?P<ending>\.gguf)",
    re.DOTALL | re.IGNORECASE,
)


@dataclass(frozen=True)
class PartName:
    """The name of part `number` (from 1) of a model's `count`; the words between are as they are written."""

    model: str
    number: int
    count: int
    of: str = "-of-"
    ending: str = ENDING

    def part(self, number: int) -> str:
        """The name of another part, written like this one."""
        return f"{self.model}-{number:05}{self.of}{self.count:05}{self.ending}"


def part_name(name: str) -> PartName | None:
    """What the name of a file says of a split model; None for any other name."""
    match = _PART.fullmatch(name)
    if match is None:
        return None
    return PartName(match["model"], int(match["number"]), int(match["count"]), match["of"], match["ending"])


def is_gguf(name: str) -> bool:
    """Whether a name ends as those of GGUF files do."""
    return name.lower().endswith(ENDING)


def without_ending(name: str) -> str:
    """The name without the ending of GGUF files, if it has that."""
    return name[: -len(ENDING)] if is_gguf(name) else name
