"""A limit of time for what is compiled of somebody else's text.

Nothing ends a thread from outside, so one that is late works on, unheard; there are few at a time. Knows
functions; nothing of grammars.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import BoundedSemaphore, Event, Thread
from typing import Final, Generic, TypeVar

from graphml.errors import UsageError

SECONDS: Final = 20.0
AT_A_TIME: Final = 4
_FREE = BoundedSemaphore(AT_A_TIME)
T = TypeVar("T")


def within_seconds(name: str, compile: Callable[[], T], seconds: float = SECONDS) -> T:
    """What a function returns or raises; UsageError naming the setting where it takes too long.

    So it does where others that are late leave no room to begin.
    """
    if not _FREE.acquire(timeout=seconds):
        raise UsageError(f"{name}: {AT_A_TIME} others are compiled since {seconds:g} seconds")
    work = _Work(compile)
    Thread(target=work.run, name="graphml-compile", daemon=True).start()
    if not work.done.wait(seconds):
        raise UsageError(f"{name}: wanted one that compiles within {seconds:g} seconds")
    if work.error is not None:
        raise work.error
    assert work.found is not None
    return work.found


class _Work(Generic[T]):
    def __init__(self, compile: Callable[[], T]) -> None:
        self._compile, self.done = compile, Event()
        self.found: T | None = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.found = self._compile()
        except BaseException as error:  # raised again by who waits
            self.error = error
        finally:
            _FREE.release()
            self.done.set()
