"""A limit of time for what is compiled of somebody else's text.

Nothing ends a thread from outside, so one that is late works on, unheard; there are few at a time. Knows
functions; nothing of grammars.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, wait
from threading import BoundedSemaphore, Thread
from typing import Final, TypeVar

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
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            result = compile()
        except BaseException as error:  # raised again by who waits
            _FREE.release()
            outcome.set_exception(error)
        else:
            _FREE.release()
            outcome.set_result(result)

    Thread(target=run, name="graphml-compile", daemon=True).start()
    if not wait([outcome], seconds).done:
        raise UsageError(f"{name}: wanted one that compiles within {seconds:g} seconds")
    return outcome.result()
