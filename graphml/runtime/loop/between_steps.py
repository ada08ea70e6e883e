"""Work that an engine's thread does between two steps, for callers in other threads.

Knows calls and their results; nothing of engines.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


class BetweenSteps:
    """Calls that wait for the engine's thread, in order."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = SimpleQueue()

    def __bool__(self) -> bool:
        """Whether any waits."""
        return not self._calls.empty()

    def ask(self, call: Callable[[], T]) -> Future[T]:
        """Have a call made; any thread."""
        future: Future[T] = Future()
        self._calls.put((call, future))
        return future

    def run(self) -> None:
        """Make all calls that wait; the engine's thread, where no step is computed."""
        while not self._calls.empty():
            call, future = self._calls.get()
            try:
                future.set_result(call())
            except Exception as error:
                future.set_exception(error)

    def fail(self, error: Exception) -> None:
        """No call is made any more."""
        while not self._calls.empty():
            self._calls.get()[1].set_exception(error)
