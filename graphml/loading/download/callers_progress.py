"""Calls the progress function of a caller so that its own errors come out as they are.

Work on files turns an OSError into an error of ours that blames the disk or the cache. What the caller's
function raises is neither. Knows nothing of what the work is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class _CallersError(BaseException):
    """Holds an error of the caller's function; no `except Exception` on its way takes it for another one."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


def with_progress(work: Callable[[Callable[P, None]], T], progress: Callable[P, None]) -> T:
    """Return work(progress); an error that `progress` raises passes all handlers of `work` unchanged."""

    def guarded(*arguments: P.args, **keywords: P.kwargs) -> None:
        try:
            progress(*arguments, **keywords)
        except Exception as error:
            raise _CallersError(error) from None

    try:
        return work(guarded)
    except _CallersError as raised:
        own = raised.error
    raise own
