"""Who compiles a structure next, of those who ask at the same time: keys in turn, of each the smallest first.

Two are compiled at a time, of which one may be large: a small one never waits for large ones alone. Knows who
asks, and sizes; nothing of structures.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import count
from threading import Condition
from typing import Any, Final

from graphml.errors import BusyError

AT_A_TIME: Final = 2
LARGE: Final = 16 << 10
"""Characters from which on a structure is large."""
MOST_WAITING, MOST_OF_ONE = 64, 32
"""So many may wait, and so many of one key."""


@dataclass(eq=False)
class Asker:
    """Somebody for whom structures are compiled, whom nobody knows. key: whose turn it is.

    resting: entered while its thread waits. left: nobody waits for it any more; see `CompileTurns.leave`.
    """

    key: str | None = None
    resting: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
    left: bool = False


_ASKER: ContextVar[Asker | None] = ContextVar("asker", default=None)


@contextlib.contextmanager
def asked_by(asker: Asker) -> Iterator[None]:
    """Within, in this thread, what is compiled is somebody else's: it is tried in a process, in turn."""
    token = _ASKER.set(asker)
    try:
        yield
    finally:
        _ASKER.reset(token)


def current_asker() -> Asker | None:
    """For whom this thread works; None: for who called the library."""
    return _ASKER.get()


@dataclass(eq=False)
class _Turn:
    asker: Asker
    size: int
    number: int


class CompileTurns:
    """Turns for any number of threads."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._waiting: list[_Turn] = []
        self._running: list[_Turn] = []
        self._numbers = count(1)
        self._latest: dict[str | None, int] = {}  # the number of each key's latest turn

    @contextlib.contextmanager
    def turn(self, asker: Asker, size: int) -> Iterator[None]:
        """Within it is the asker's turn, for a structure of so many characters.

        BusyError where too many wait, and where the asker leaves before.
        """
        with asker.resting():
            waiting = self._begun(asker, size)
            try:
                yield
            finally:
                with self._changed:
                    self._running.remove(waiting)
                    self._changed.notify_all()

    def _begun(self, asker: Asker, size: int) -> _Turn:
        with self._changed:
            n_of_key = sum(other.asker.key == asker.key for other in self._waiting)
            if len(self._waiting) >= MOST_WAITING or n_of_key >= MOST_OF_ONE:
                raise BusyError(
                    f"{len(self._waiting)} grammars and schemas wait to be compiled, {n_of_key} of them of "
                    "this key; try again later"
                )
            waiting = _Turn(asker, size, next(self._numbers))
            self._waiting.append(waiting)
            try:
                self._changed.wait_for(lambda: asker.left or self._next() is waiting)
                if asker.left:
                    raise BusyError("the client has left")
            finally:
                self._waiting.remove(waiting)
                self._changed.notify_all()
            self._running.append(waiting)
            self._latest[asker.key] = next(self._numbers)
            return waiting

    def _next(self) -> _Turn | None:
        if len(self._running) >= AT_A_TIME:
            return None
        running = [other.asker.key for other in self._running]
        only_small = any(other.size >= LARGE for other in self._running)
        return min(
            (other for other in self._waiting if other.size < LARGE or not only_small),
            key=lambda other: (
                running.count(other.asker.key), self._latest.get(other.asker.key, 0), other.size, other.number
            ),
            default=None,
        )  # fmt: skip

    def leave(self, asker: Asker) -> None:
        """Nobody waits for what is compiled for this asker: it gives up its place."""
        with self._changed:
            asker.left = True
            self._changed.notify_all()


TURNS: Final = CompileTurns()
