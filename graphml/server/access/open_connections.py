"""How many connections a server has open, and which of them is closed to make room for another.

A connection waits until its request has come whole, and again behind the answer; of those that wait, the one
that has waited longest is closed where there are too many. Knows sockets; nothing of HTTP.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import time
from collections.abc import Callable
from typing import Any

SPARE = 128
"""File descriptors besides those of connections: of models, logs, threads and tools."""
TOLD_S = 60.0
"""Seconds between two lines that tell of too many connections."""
AT_A_TIME = 64
"""Connections that are accepted until the event loop does something else; so many may be open too many."""
USED_UP = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class OpenConnections:
    """The connections of a server, at most `most` or as many as the process may have files.

    tell: writes a line of the log.
    """

    def __init__(self, most: int, tell: Callable[[str], object] = lambda line: None) -> None:
        self._tell = tell
        self.most = min(most, _most_files(most + SPARE) - SPARE)
        self._open: set[int] = set()
        self._waiting: dict[int, Callable[[], object]] = {}
        self._told = -TOLD_S

    def __len__(self) -> int:
        return len(self._open)

    @property
    def full(self) -> bool:
        """Whether there is room for no further one."""
        return len(self._open) >= self.most

    def accepted(self, sock: socket.socket) -> None:
        """One was accepted, and waits."""
        self._open.add(sock.fileno())
        self.waits(sock.fileno(), lambda: _shut(sock))

    def waits(self, number: int, close: Callable[[], object]) -> None:
        """The connection of this descriptor waits for a request, or goes on to."""
        if number in self._open:
            self._waiting[number] = close

    def is_answered(self, number: int) -> None:
        """The connection of this descriptor has a whole request, and is not closed for others."""
        self._waiting.pop(number, None)

    def closed(self, number: int) -> None:
        """The connection of this descriptor has ended."""
        self._open.discard(number)
        self._waiting.pop(number, None)

    def make_room(self) -> bool:
        """Close the one that has waited longest for a request; whether there was one."""
        if time.monotonic() - self._told >= TOLD_S:
            self._told = time.monotonic()
            self._tell(
                f"graphml: {len(self)} connections are open, as many as may be: waiting ones are closed"
            )
        if not self._waiting:
            return False
        number = next(iter(self._waiting))
        self._waiting.pop(number)()
        return True


class BoundedListener(socket.socket):
    """A listening socket that accepts no more connections than `connections` has room for."""

    connections: OpenConnections
    _reserve: int | None = None
    _calls = 0

    def bound(self, connections: OpenConnections) -> BoundedListener:
        """Count what it accepts there."""
        self.connections, self._reserve = connections, _reserve()
        return self

    def accept(self) -> tuple[socket.socket, Any]:
        """The next connection; BlockingIOError now and then, for the event loop's other work.

        Where there is no room, another one is closed; where none can be, and where the process has no
        descriptors left, it is closed itself (ConnectionAbortedError): one that stayed in the queue would
        wake the event loop again and again.
        """
        self._calls += 1
        is_late = (
            len(self.connections) >= self.connections.most + AT_A_TIME
        )  # for those that are being closed
        if is_late or self._calls % AT_A_TIME == 0:
            raise BlockingIOError
        try:
            accepted, address = super().accept()
        except OSError as error:
            if error.errno not in USED_UP:
                raise
            self.connections.make_room()
            self._refuse()
            raise ConnectionAbortedError from None
        if self.connections.full and not self.connections.make_room():
            accepted.close()
            raise ConnectionAbortedError
        counted = _Counted(accepted.family, accepted.type, accepted.proto, accepted.detach())
        counted.connections = self.connections
        self.connections.accepted(counted)
        return counted, address

    def close(self) -> None:
        """Close it, and the descriptor that it keeps."""
        if self._reserve is not None:
            os.close(self._reserve)
            self._reserve = None
        super().close()

    def _refuse(self) -> None:
        """Close a connection that cannot be accepted, by the descriptor that is kept for it."""
        if self._reserve is not None:
            os.close(self._reserve)
            self._reserve = None
        with contextlib.suppress(OSError):
            super().accept()[0].close()
        self._reserve = _reserve()


class _Counted(socket.socket):
    """A connection that is counted until it is closed."""

    connections: OpenConnections

    def close(self) -> None:
        self.connections.closed(self.fileno())
        super().close()


def _reserve() -> int | None:
    """A descriptor of nothing, to be closed where one is needed; None where there is none."""
    with contextlib.suppress(OSError):
        return os.open(os.devnull, os.O_RDONLY)
    return None


def _shut(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):  # the client has left
        sock.shutdown(socket.SHUT_RDWR)


def _most_files(wanted: int) -> int:
    """How many files the process may have open, `wanted` where the system allows it."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    if soft != unlimited and soft < wanted:
        soft = wanted if hard == unlimited else min(wanted, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return wanted if soft == unlimited else max(soft, SPARE + 8)
