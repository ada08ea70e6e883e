"""Lists of values in llama-bench's syntax: `1,2`, `1-4`, `512-2048+512`, `1-32*2`, options given again.

Knows texts only.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from graphml.errors import UsageError

_RANGE = re.compile(r"(\d+)(?:-(\d+)(?:([+*])(\d+))?)?")
MOST = 4096
LARGEST = 1 << 31


def whole_numbers(option: str, given: Sequence[str], least: int = 0) -> list[int]:
    """The numbers of all the texts, in order; UsageError that names the option for another spelling."""
    found: list[int] = []
    for text in given:
        for part in text.split(","):
            found += _range(option, part.strip(), least)
    if len(found) > MOST:
        raise UsageError(f"{option}: wanted at most {MOST} values; got {len(found)}")
    return found


def _range(option: str, text: str, least: int) -> list[int]:
    match = _RANGE.fullmatch(text)
    if match is None:
        raise UsageError(
            f"{option}: wanted whole numbers such as 1,2 or a range as first-last, first-last+step or "
            f"first-last*factor; got {text!r}"
        )
    first, last = int(match[1]), int(match[2] or match[1])
    step, multiply = int(match[4] or 1), match[3] == "*"
    if not least <= first <= last < LARGEST:
        raise UsageError(f"{option}: wanted {least} or more, rising; got {text!r}")
    if first < last and (step == 0 or (multiply and (step == 1 or first == 0))):
        raise UsageError(f"{option}: the range {text!r} never ends")
    found: list[int] = []
    while first <= last and len(found) <= MOST:
        found.append(first)
        first = first * step if multiply else first + step
        if step == 0 or (multiply and first == 0):
            break
    return found


def words(option: str, given: Sequence[str]) -> list[str]:
    """The words of all the texts, in order; UsageError that names the option for texts without any."""
    found = [part.strip() for text in given for part in text.split(",") if part.strip()]
    if given and not found:
        raise UsageError(f"{option}: wanted at least one name; got {given[0]!r}")
    return found


def pairs(option: str, given: Sequence[str]) -> list[tuple[int, int]]:
    """Pairs `pp,tg`, one of each text."""
    found = []
    for text in given:
        numbers = whole_numbers(option, [text], 1)
        if len(numbers) != 2:
            raise UsageError(f"{option}: wanted tokens of the prompt and after it, as 512,128; got {text!r}")
        found.append((numbers[0], numbers[1]))
    return found
