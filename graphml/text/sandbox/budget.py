"""The budget of one rendering: CPU time, created text and lists, and the nesting of lists.

Every operation of a template is counted here, so that no template continues after its limit: single
operations are bounded by the size of their operands, sizes by `room`, and the clock is read in between.
Knows sizes and the clock; knows nothing of Jinja.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Collection, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import chain
from types import GeneratorType
from typing import Any

from graphml.errors import TemplateError

LONGEST_MESSAGE = 2000  # of an error, which may quote the template's values


@dataclass(frozen=True)
class TemplateLimits:
    """Limits of one rendering: a fixed part, and a part for each character of the conversation.

    seconds: CPU time of the rendering thread. characters: text created and kept, intermediate results
    included; lists and mappings count by the size of their parts. output: the same for a single value, such
    as the result.

    The parts per character allow templates that build the whole text again with every message, or read all
    messages for each one.
    """

    seconds: float = 0.5
    seconds_per_input: float = 5e-6
    characters: int = 16_000_000
    characters_per_input: int = 32
    output: int = 4_000_000
    output_per_input: int = 4


# Memory of a container and of each of its slots, in characters of text.
CONTAINER, PLACE, OBJECT = 64, 8, 16
LONG_TEXT = 1000
LARGEST_INTEGER_BITS = 4096
WORK_BETWEEN_CLOCK_READINGS = 20_000
WORK_OF_A_STEP = 16
LARGEST_WORK = 200_000_000
# Python hashes nested tuples without checking the stack: some ten thousand levels crash the process.
DEEPEST_VALUE = 1000
# Different keys with one hash are all compared with each other. Only keys of an attack collide so often.
MOST_KEYS_OF_A_HASH = 16


class Budget:
    """Counts the resources of a rendering and raises TemplateError at the limit.

    `data` is the caller's data for the template: its size raises the limits and is not charged.
    """

    def __init__(self, limits: TemplateLimits, data: Mapping[str, Any]) -> None:
        self._weights: dict[int, tuple[object, int, int]] = {}  # the value, its size and depth
        self._work = 0
        self._left = self._largest = sys.maxsize
        self._end = math.inf
        given = self.weigh(data)
        self._left = limits.characters + limits.characters_per_input * given
        self._largest = limits.output + limits.output_per_input * given
        self._seconds = limits.seconds + limits.seconds_per_input * given
        self._end = time.thread_time() + self._seconds

    def step(self, work: int = WORK_OF_A_STEP) -> None:
        """Count an operation; reads the clock once enough work has accumulated."""
        self._work += work
        if self._work >= WORK_BETWEEN_CLOCK_READINGS:
            self._work = 0
            if time.thread_time() > self._end:
                raise TemplateError(f"the template takes longer than {self._seconds:.3g} s")

    def labour(self, work: int) -> None:
        """Count an operation whose time grows faster than its operands, before it runs."""
        if work > LARGEST_WORK:
            raise TemplateError("the template asks for an operation that would take too long")
        self.step(WORK_OF_A_STEP + (work >> 3))

    def room(self, characters: int) -> None:
        """Check, before a text of this size is made, that it may be made."""
        self.step()
        if characters > self._largest:
            raise TemplateError(f"the template creates too much text: {characters:,} characters at once")
        if characters > self._left:
            raise TemplateError("the template creates too much text, intermediate results included")

    def places(self, count: int, each: int = PLACE) -> None:
        """Check, before a list of this many items is made, that it may be made."""
        self.step()
        if count > self.free_places(each):
            raise TemplateError(f"the template creates too long a list: {count:,} items")

    def free_places(self, each: int = PLACE) -> int:
        """Return how many items a list made now may have."""
        return max(0, self._left) // each

    @property
    def largest(self) -> int:
        """How many characters one value, such as the result, may have."""
        return self._largest

    def spend(self, characters: int) -> None:
        """Count created text."""
        self.step(WORK_OF_A_STEP + (characters >> 3))
        self._left -= characters
        if self._left < 0:
            raise TemplateError("the template creates too much text, intermediate results included")

    def give_back(self, characters: int) -> None:
        """Subtract text that was freed."""
        self._left += characters

    def read(self, *values: object) -> None:
        """Count an operation that reads these values completely, such as a comparison."""
        self.step(WORK_OF_A_STEP + (sum(map(self.weigh, values)) >> 3))

    def weigh(self, value: object) -> int:
        """Return the size of a value when printed, in characters; each occurrence of a shared part counts.

        A list that contains one list twice, which contains another one twice, and so on, is small in memory
        but exponentially large when printed or compared: hence sizes are stored for every container.
        """
        if isinstance(value, str):
            return len(value)
        if isinstance(value, CONTAINERS):
            known = self._weights.get(id(value))
            return known[1] if known is not None else self._weigh_container(value)
        if isinstance(value, int):
            return OBJECT + value.bit_length() // 3
        if isinstance(value, range):
            return PLACE * len(value)
        return OBJECT

    def _weigh_container(self, value: Collection[Any]) -> int:
        """Measure a list, tuple, mapping or view for the first time; returns its size."""
        places, parts = _parts(value)
        self.spend(CONTAINER + (0 if isinstance(value, VIEWS) else places))
        total = CONTAINER + places + sum(map(self.weigh, parts))
        if total > self._largest:
            raise TemplateError(
                f"the template builds a list or mapping of more than {self._largest:,} characters"
            )
        inner = (self._weights[id(part)][2] for part in _parts(value)[1] if isinstance(part, CONTAINERS))
        depth = 1 + max(inner, default=0)
        if depth > DEEPEST_VALUE:
            raise TemplateError(f"the template nests lists or mappings more than {DEEPEST_VALUE:,} deep")
        if isinstance(value, dict):
            check_keys(value)
        self._weights[id(value)] = (value, total, depth)  # a reference, so that the id is not reused
        return total

    def admit(self, value: Any) -> Any:
        """Count a new value and return it; a generator is run at once, and an iterator of its items returned.

        Chains of generators would not be counted otherwise; like the generator the iterator is truthy, has no
        length and can be read once.
        """
        if isinstance(value, str):
            self.spend(len(value))
            if type(value) is str and len(value) >= LONG_TEXT:
                return _LongText(value, self)
        elif isinstance(value, bool) or value is None:
            self.step()
        elif isinstance(value, int):
            self.step()
            check_integer_bits(value.bit_length())
        elif isinstance(value, (list, tuple, dict)):
            self.weigh(value)
            self.spend(OBJECT * len(value))
        elif isinstance(value, GeneratorType):
            return iter(self.admit(list(self._counted(value))))
        else:
            self.spend(CONTAINER)
        return value

    def _counted(self, items: Iterable[Any]) -> Iterable[Any]:
        for item in items:
            self.spend(OBJECT)
            yield item


class _LongText(str):
    """A text that returns its size to the budget when it is freed.

    Many templates build the whole conversation as one text that grows with each message: all the texts
    together are then far larger than those in memory at any time.
    """

    __slots__ = ("_budget",)
    _budget: Budget

    def __new__(cls, text: str, budget: Budget) -> _LongText:
        counted = super().__new__(cls, text)
        counted._budget = budget
        return counted

    def __del__(self) -> None:
        self._budget.give_back(len(self))


_ITEMS: Any = type({}.items())
VIEWS: tuple[type[Collection[Any]], ...] = (type({}.keys()), type({}.values()), _ITEMS)
CONTAINERS: tuple[type[Collection[Any]], ...] = (list, tuple, dict, *VIEWS)


def _parts(value: Any) -> tuple[int, Iterable[Any]]:
    """The size of a container's slots, and its parts: of a mapping its keys and values."""
    if isinstance(value, dict):
        return 2 * PLACE * len(value), chain(value, value.values())
    if isinstance(value, _ITEMS):  # it makes new pairs each time that it is read
        return (CONTAINER + 2 * PLACE) * len(value), chain(value.mapping, value.mapping.values())
    return PLACE * len(value), value


class KeyCheck:
    """Refuses colliding keys of a hash table; call it for each new key before the table is changed."""

    def __init__(self) -> None:
        self._of_a_hash: dict[int, int] = {}

    def add(self, key: object) -> None:
        """Count a key that is not in the table yet."""
        value = hash(key)
        count = self._of_a_hash[value] = self._of_a_hash.get(value, 0) + 1
        if count > MOST_KEYS_OF_A_HASH:
            raise TemplateError(f"the template uses more than {MOST_KEYS_OF_A_HASH} keys of the same hash")


def check_keys(keys: Iterable[object]) -> None:
    """Refuse a mapping with too many keys of one hash."""
    check = KeyCheck()
    for key in keys:
        check.add(key)


def check_integer_bits(bits: int) -> None:
    """Refuse numbers so long that arithmetic on them takes noticeable time."""
    if bits > LARGEST_INTEGER_BITS:
        raise TemplateError(f"the template counts with a number of more than {LARGEST_INTEGER_BITS} bits")


# Jinja passes no state of ours to most of its hooks, and several threads may render at once.
CURRENT: ContextVar[Budget] = ContextVar("budget of the template being rendered")
