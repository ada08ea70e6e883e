"""A server in a thread of the test's process, while within."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.applications import Starlette
from starlette.routing import BaseRoute

from graphml.server.access.open_connections import BoundedListener, OpenConnections


@contextmanager
def served_config(config: uvicorn.Config, connections: OpenConnections | None = None) -> Iterator[str]:
    """The address of a server of this configuration. connections: where what it accepts is counted."""
    if connections is None:
        listening = socket.create_server(("127.0.0.1", 0))
    else:
        listening = BoundedListener().bound(connections)
        listening.bind(("127.0.0.1", 0))
        listening.listen()
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listening],))
    thread.start()
    try:
        while not server.started:
            time.sleep(0.005)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = server.force_exit = True
        thread.join()
        listening.close()


@contextmanager
def served_routes(routes: list[BaseRoute]) -> Iterator[str]:
    """The address of a server of these routes."""
    with served_config(uvicorn.Config(Starlette(routes=routes), log_level="error", ws="none")) as address:
        yield address
