"""Handlers of signals, of a loop of events or for a while. Knows that Windows has few signals."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


def on_signal(loop: asyncio.AbstractEventLoop, name: str, call: Callable[[], object]) -> None:
    """Let the loop make a call when a signal comes; nothing where the system has no signal of that name.

    Call it in the main thread.
    """
    number = getattr(signal, name, None)
    if number is None:
        return
    try:
        loop.add_signal_handler(number, call)
    except NotImplementedError:  # the loops of Windows
        signal.signal(number, lambda number, frame: loop.call_soon_threadsafe(call) and None)


@contextmanager
def interrupts(handler: Callable[[int, Any], Any]) -> Iterator[None]:
    """Within, Ctrl-C calls the handler."""
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
