"""Runs the server: sockets, the ready line, and its end by SIGTERM or Ctrl-C.

After SIGTERM new requests are refused with 503, and old ones may end for a while, or until another
SIGTERM. SIGHUP reads keys again. Knows uvicorn and signals.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import uvicorn
from starlette.types import ASGIApp

from graphml.api.mcp_servers import McpServers
from graphml.api.model import Model
from graphml.errors import BackendError
from graphml.server.access.connections import check_certificate, uvicorn_config
from graphml.server.access.open_connections import OpenConnections
from graphml.server.engine.served_models import ServedModels, Sources
from graphml.server.engine.service import Service, SharedParts
from graphml.server.listening import listening
from graphml.server.observing.request_log import Ended
from graphml.server.observing.server_metrics import own_bytes
from graphml.server.observing.told_lines import tell
from graphml.server.observing.trace_export import TraceExport
from graphml.server.options.api_keys import ApiKeys
from graphml.server.options.server_options import ServerOptions
from graphml.server.server_app import server_app
from graphml.system.pages import keep_large_blocks_apart
from graphml.system.signals import on_signal

POLL = 0.05
_SHOWN = 8  # further models in the line of the start
SWITCH_S = 0.001
"""Seconds that a thread computes in Python until another may; the event loop waits so long for each."""


def serve_until_stopped(
    model: Model | None,
    options: ServerOptions,
    sources: Sources,
    mcp: McpServers | None = None,
    budget: int | None = None,
) -> None:
    """Serve until SIGTERM or Ctrl-C; BackendError where an engine has ended before.

    model: None: requests choose one of the sources. mcp: servers whose tools the page may call.
    budget: bytes that all models may take, the open one included; None: any.
    """
    check_certificate(options)
    keep_large_blocks_apart()
    sys.setswitchinterval(SWITCH_S)
    traces = None if options.otlp_endpoint is None else TraceExport(options.otlp_endpoint)
    shared = SharedParts(options)
    first = None if model is None else Service(model, options, shared)
    try:
        models = ServedModels(shared, sources, first, budget)
        connections = OpenConnections(max(options.limits.connections, 2 * options.limits.waiting), tell)
        with listening(options.hosts, options.port, connections) as sockets:
            asyncio.run(_serve(models, sockets, connections, [] if traces is None else [traces], mcp))
        if models.dead():
            raise BackendError("serve: the engine has ended; see the log")
    finally:
        for service in list(shared.services):
            service.close()
        if traces is not None:
            traces.close()


async def _serve(
    models: ServedModels,
    sockets: list[socket.socket],
    connections: OpenConnections,
    listeners: Sequence[Ended],
    mcp: McpServers | None,
) -> None:
    app = server_app(models, listeners, mcp)

    def ready() -> None:
        tell(_ready_line(models, sockets))
        models.begin()

    await run_application(app, models, models.shared.keys, sockets, connections, ready)
    if not models.dead():
        await models.close()


class Drained(Protocol):
    """What an application answers by: it is drained before it ends."""

    options: ServerOptions

    def busy(self) -> bool:
        """Whether a request is being answered."""

    def drain(self) -> None:
        """Let no further request in."""

    def cancel(self) -> None:
        """End all requests."""


async def run_application(
    app: ASGIApp, served: Drained, keys: ApiKeys, sockets: list[socket.socket], connections: OpenConnections,
    ready: Callable[[], None],
) -> None:  # fmt: skip
    """Run an application until SIGTERM or Ctrl-C, and its requests to their end.

    ready: called once it listens.
    """
    options = served.options
    server = _Server(uvicorn_config(app, options, connections))
    running = asyncio.ensure_future(server.serve(sockets))
    loop = asyncio.get_running_loop()
    stopping, hurry = asyncio.Event(), asyncio.Event()

    def stop() -> None:
        (hurry if stopping.is_set() else stopping).set()

    for name in ("SIGTERM", "SIGINT"):
        on_signal(loop, name, stop)
    on_signal(loop, "SIGHUP", keys.reload)  # nothing without a file; it must not kill
    while not server.started and not running.done():
        await asyncio.sleep(0.005)
    if not running.done():
        ready()
    stopped = asyncio.ensure_future(stopping.wait())
    await asyncio.wait({running, stopped}, return_when=asyncio.FIRST_COMPLETED)
    served.drain()
    end = time.monotonic() + options.drain
    while served.busy() and time.monotonic() < end and not hurry.is_set():
        await asyncio.sleep(POLL)
    served.cancel()
    server.should_exit = True
    await running


class _Server(uvicorn.Server):
    """uvicorn without its own signal handlers: SIGTERM drains first."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def addresses(options: ServerOptions, sockets: Sequence[socket.socket]) -> str:
    """Where sockets listen, as addresses for people."""
    scheme = "http" if options.ssl_certificate is None else "https"
    where = []
    for sock in sockets:
        if isinstance(sock.getsockname(), str):  # the path of a UNIX socket
            where.append(f"unix://{sock.getsockname()}")
            continue
        host, port = sock.getsockname()[:2]
        where.append(f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}{options.prefix}")
    return " ".join(where)


def _ready_line(models: ServedModels, sockets: list[socket.socket]) -> str:
    options, where = models.options, addresses(models.options, sockets)
    service = models.known(None) if models.has_first else None
    if not isinstance(service, Service):
        return f"graphml: {len(models.room.entries)} models at {where} (loaded on demand)"
    access = service.access
    what = f"{options.parallel} slots of {access.n_ctx} tokens" if access.engine else "embeddings"
    stats = access.stats()
    room = f", room for {(stats.blocks_free + stats.blocks_used) * 32} tokens" if stats else ""
    own = own_bytes()
    memory = "" if own is None else f", {own / 1e6:.0f} MB of memory besides the model's file"
    further = ", ".join([*models.options.more_models][:_SHOWN])
    also = f"; further models: {further}" if further else ""
    return f"graphml: {service.name} at {where} ({what}{room}{memory}){also}"
