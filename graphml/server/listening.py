"""Sockets that a server listens at, by address or at the path of a UNIX socket, and their end.

Knows sockets and files; nothing of HTTP.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

from graphml.errors import UsageError
from graphml.server.access.open_connections import BoundedListener, OpenConnections
from graphml.server.options.server_options import is_path

BACKLOG = 2048
CONNECT_S = 1.0


@contextlib.contextmanager
def listening(hosts: Sequence[str], port: int, connections: OpenConnections) -> Iterator[list[socket.socket]]:
    """A socket of each host; at the end they are closed, and paths that are theirs removed.

    connections: all that they accept.

    UsageError where one cannot be listened at.
    """
    with contextlib.ExitStack() as ends:
        sockets = [
            _unix_socket(Path(host), ends) if is_path(host) else _socket(host, port, ends) for host in hosts
        ]
        yield [listener.bound(connections) for listener in sockets]


def _socket(host: str, port: int, ends: contextlib.ExitStack) -> BoundedListener:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = ends.enter_context(BoundedListener(family, kind, protocol))
        # Windows lets a second server take the port of one that set SO_REUSEADDR.
        listener.setsockopt(socket.SOL_SOCKET, getattr(socket, "SO_EXCLUSIVEADDRUSE", socket.SO_REUSEADDR), 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise UsageError(
                f"--port {port}: the port is in use on {host}; choose another one, or 0 for any free one"
            ) from None
        raise UsageError(f"--host {host} --port {port}: cannot listen there: {error.strerror}") from None
    return listener


def _unix_socket(path: Path, ends: contextlib.ExitStack) -> BoundedListener:
    if not hasattr(socket, "AF_UNIX"):
        raise UsageError(f"--host {path}: this system has no UNIX sockets for Python; wanted an address")
    try:
        _remove_abandoned(path)
        listener = ends.enter_context(BoundedListener(socket.AF_UNIX, socket.SOCK_STREAM))
        listener.bind(str(path))
        ends.callback(_remove, path, path.stat())
        listener.listen(BACKLOG)
    except OSError as error:
        raise UsageError(f"--host {path}: cannot listen there: {error.strerror or error}") from None
    return listener


def _remove_abandoned(path: Path) -> None:
    """Remove the socket of a process that was killed; another server's answers, and stays."""
    if path.is_socket():
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
            other.settimeout(CONNECT_S)
            try:
                other.connect(str(path))
            except ConnectionRefusedError:
                path.unlink()


def _remove(path: Path, status: os.stat_result) -> None:
    """Remove a path, unless it is another's by now."""
    with contextlib.suppress(OSError):
        if os.path.samestat(path.stat(), status):
            path.unlink()
