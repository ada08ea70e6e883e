"""Arrays as kernels see them in the emulator: bounds are checked, and races in shared memory are found.

Shared memory remembers which invocation wrote what since the last barrier.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import index as whole
from typing import Any, NoReturn

import numpy as np

from graphml.errors import BackendError
from graphml_gpu.language.tree import ArrayVariable


@dataclass(slots=True)
class Turn:
    """kernel: which runs. invocation: whose turn it is."""

    kernel: str
    invocation: int = 0


class CheckedArray:
    """An array whose bounds are checked.

    held: a NumPy array or, where the emulator alone sees it, a list, whose vectors nobody changes.
    """

    __slots__ = ("array", "count", "held", "turn")

    def __init__(self, turn: Turn, array: ArrayVariable, held: Any) -> None:
        self.turn, self.array, self.held = turn, array, held
        self.count = len(held)

    def fail(self, message: str) -> NoReturn:
        """Raise `BackendError` for the invocation that runs."""
        raise BackendError(
            f"kernel {self.turn.kernel}, invocation {self.turn.invocation}: `{self.array.name}` {message}"
        )

    def outside(self, place: int) -> NoReturn:
        """Raise `BackendError` for an index out of bounds."""
        self.fail(f"has {self.count} elements, none at {place}")

    def __getitem__(self, index: Any) -> Any:
        place = whole(index)
        if 0 <= place < self.count:
            return self.held[place]
        return self.outside(place)

    def __setitem__(self, index: Any, value: Any) -> None:
        place = whole(index)
        if not 0 <= place < self.count:
            self.outside(place)
        self.held[place] = value

    def atomic(self, operator: str, index: Any, value: Any) -> Any:
        """Change an element; what it held."""
        place = whole(index)
        if not 0 <= place < self.count:
            self.outside(place)
        old = self.held[place]
        change: Mapping[str, Callable[[Any, Any], Any]] = {
            "add": np.add,
            "max": np.maximum,
            "min": np.minimum,
            "or": np.bitwise_or,
        }
        self.held[place] = change[operator](old, value)
        return old


class _Vectors(CheckedArray):
    """Vectors in memory that may change."""

    __slots__ = ()

    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(index).copy()


class Shared(CheckedArray):
    """Memory of a workgroup. writers: place -> which invocation wrote it since the last barrier."""

    __slots__ = ("writers",)

    def __init__(self, turn: Turn, array: ArrayVariable, held: Any) -> None:
        super().__init__(turn, array, held)
        self.writers: dict[int, int] = {}

    def __getitem__(self, index: Any) -> Any:
        place = whole(index)
        if not 0 <= place < self.count:
            self.outside(place)
        if place in self.writers and self.writers[place] != self.turn.invocation:
            self.fail(f"[{place}] was written by invocation {self.writers[place]}, with no barrier since")
        return self.held[place]

    def __setitem__(self, index: Any, value: Any) -> None:
        place, me = whole(index), self.turn.invocation
        if not 0 <= place < self.count:
            self.outside(place)
        if self.writers.get(place, me) != me and not self.array.atomic:
            self.fail(
                f"[{place}] was written by invocation {self.writers[place]} too, with no barrier between"
            )
        self.writers[place] = me
        self.held[place] = value


def of_memory(turn: Turn, array: ArrayVariable, held: np.ndarray[Any, Any], begin: int) -> CheckedArray:
    """A buffer, whose elements are in a device's memory from `begin` on."""
    return (CheckedArray if array.element.lanes == 1 else _Vectors)(turn, array, held[begin:])
