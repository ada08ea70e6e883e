"""Handlers of signals, of a loop of events or for a while. Knows that Windows has few signals.

Imports little: a command takes its signals before it loads anything else.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio

_KEPT: set[int] = set()
"""Signals that came before a loop of events took them."""


def keep(name: str) -> None:
    """From now on a signal does nothing until `on_signal` takes it, whose call is then made once."""
    number = getattr(signal, name, None)
    if number is not None:
        signal.signal(number, lambda number, frame: _KEPT.add(number))


def on_signal(loop: asyncio.AbstractEventLoop, name: str, call: Callable[[], object]) -> None:
    """Let the loop make a call when a signal comes, or has come since `keep`.

    Nothing where the system has no signal of that name.

    Call it in the main thread.
    """
    number = getattr(signal, name, None)
    if number is None:
        return
    try:
        loop.add_signal_handler(number, call)
    except NotImplementedError:  # the loops of Windows
        signal.signal(number, lambda number, frame: loop.call_soon_threadsafe(call) and None)
    if number in _KEPT:
        _KEPT.discard(number)
        loop.call_soon(call)


@contextmanager
def interrupts(handler: Callable[[int, Any], Any]) -> Iterator[None]:
    """Within, Ctrl-C calls the handler."""
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
