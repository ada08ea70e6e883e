"""Connections that send a request too slowly are closed, whatever it is for: its head, or its body.

Knows HTTP/1.1 as uvicorn reads it (by h11); nothing of what is asked.
"""

from __future__ import annotations

import asyncio
import functools
import ssl
from pathlib import Path
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from graphml.errors import UsageError
from graphml.server.options.server_options import RequestLimits, ServerOptions

LARGEST_HEAD = 64 << 10
KEEP_ALIVE_S = 75
REFUSED = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


class TimedProtocol(H11Protocol):
    """uvicorn's protocol, with limits on the time from a request's first byte to its last."""

    def __init__(self, *arguments: Any, limits: RequestLimits, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._limits = limits
        self._part: str | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._received = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for a first request as long as for a further one."""
        super().connection_made(transport)
        self._watch = self.loop.call_later(KEEP_ALIVE_S, self._over)

    def connection_lost(self, exc: Exception | None) -> None:
        """Watch no more."""
        self._begin(None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take what came."""
        self._received += len(data)
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        """Go on with what came meanwhile."""
        super().on_response_complete()
        self._look()

    def _look(self) -> None:
        """Watch the part of a request that is coming."""
        state, part = self.conn.their_state, None
        if state is h11.SEND_BODY:
            part = "body"
        elif state is h11.IDLE and self.conn.trailing_data[0]:
            part = "head"
        if part is None or part != self._part:  # a new connection is watched without a part
            self._begin(part)

    def _begin(self, part: str | None) -> None:
        if self._watch is not None:
            self._watch.cancel()
        self._part, self._received, self._watch = part, 0, None
        if part is not None:
            seconds = self._limits.body_s if part == "body" else self._limits.head_s
            self._watch = self.loop.call_later(seconds, self._over)

    def _over(self) -> None:
        """Go on with a body that comes fast enough; else close the connection."""
        if self._part == "body" and self._received >= self._limits.body_s * self._limits.body_bytes_per_s:
            self._begin("body")
            return
        if self.transport.is_closing():
            return
        answered = self._part == "body" and self.cycle.response_started
        if self._part is not None and not answered:
            self.transport.write(REFUSED)
        self.transport.close()


def uvicorn_config(app: ASGIApp, options: ServerOptions, **named: Any) -> uvicorn.Config:
    """How uvicorn serves an application."""
    return uvicorn.Config(
        app, log_level="error", access_log=False, lifespan="off", ws="none", server_header=False,
        http=functools.partial(TimedProtocol, limits=options.limits),  # type: ignore[arg-type]
        h11_max_incomplete_event_size=LARGEST_HEAD, timeout_keep_alive=KEEP_ALIVE_S,
        ssl_keyfile=_text(options.ssl_key), ssl_certfile=_text(options.ssl_certificate),
        timeout_graceful_shutdown=1, **named,
    )  # fmt: skip


def check_certificate(options: ServerOptions) -> None:
    """UsageError for a key or a certificate that is alone, cannot be read, or is not the other's."""
    if options.ssl_key is None and options.ssl_certificate is None:
        return
    if options.ssl_key is None or options.ssl_certificate is None:
        raise UsageError("wanted --ssl-key-file and --ssl-cert-file, got one of them")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(options.ssl_certificate, options.ssl_key)
    except OSError as error:  # an ssl.SSLError is one
        paths = f"--ssl-cert-file {options.ssl_certificate} --ssl-key-file {options.ssl_key}"
        raise UsageError(f"{paths}: cannot be used: {error.strerror or error}") from None


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)
