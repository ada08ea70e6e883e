"""What all kinds of downloads tell: progress to the caller's function, and errors with advice.

Needs no library, so that a model that is here is opened without them. Knows nothing of what the work is.
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


def unreachable(host: str, reason: str, mirror: str) -> str:
    """The text for a server that does not answer; `mirror`: the variable that names another one, if any."""
    return (
        f"{host} cannot be reached ({reason}). What is here can be used: a file, or a model that "
        "`graphml models` lists (with --offline no server is asked). Behind a proxy set HTTPS_PROXY"
        + (f"; {mirror} names another server" if mirror else "")
    )


def forbidden() -> str:
    """The text for a model that is not on this machine and must not be downloaded."""
    return (
        "it is not on this machine, and --offline, GRAPHML_OFFLINE or HF_HUB_OFFLINE forbids to download it; "
        "`graphml models` lists what is here"
    )


def reason_of(error: Exception) -> str:
    """The type of an error of another library, and its first line that is not empty."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
