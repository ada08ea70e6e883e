"""Connections that send a request or read an answer too slowly are closed, whatever it is for.

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
from graphml.server.access.open_connections import OpenConnections
from graphml.server.options.server_options import ServerOptions
from graphml.server.responses.json_response import PLAIN

LARGEST_HEAD = 64 << 10
KEEP_ALIVE_S = 75
CLOSE_S = 30
"""Seconds in which a client must take the rest of an answer, once its connection is to be closed."""
WHOLE_READ_S = 60
"""Seconds in which a client must take some of an answer that is all there; in a stream it has `--timeout`."""
REFUSED = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


class TimedProtocol(H11Protocol):
    """uvicorn's protocol, with limits on the time from a request's first byte to its last, and for readers.

    connections: where it says whether it waits for a request; None: nobody counts it.
    """

    def __init__(
        self, *arguments: Any, options: ServerOptions, connections: OpenConnections | None, **named: Any
    ) -> None:
        super().__init__(*arguments, **named)
        self._limits, self._read_s, self._connections = options.limits, options.timeout, connections
        self._part: str | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._reader: asyncio.TimerHandle | None = None
        self._received, self._begun, self._unread = 0, 0.0, 0
        self._number, self._waits = -1, False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for a first request as long as for a further one."""
        super().connection_made(transport)
        self._number = transport.get_extra_info("socket").fileno()
        self._watch = self.loop.call_later(KEEP_ALIVE_S, self._over)
        self._say_whether_it_waits()

    def connection_lost(self, exc: Exception | None) -> None:
        """Watch no more."""
        self._begin(None)
        self._watch_reader(None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take what came."""
        self._received += len(data)
        super().data_received(data)
        self._look()

    def eof_received(self) -> None:
        """End with a client that ends its half: uvicorn closes the connection, and would write on."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self._watch_reader(CLOSE_S)

    def on_response_complete(self) -> None:
        """Go on with what came meanwhile."""
        super().on_response_complete()
        self._look()
        if self.transport.is_closing():
            self._watch_reader(CLOSE_S)

    def pause_writing(self) -> None:
        """Watch a client that does not take what is sent."""
        super().pause_writing()
        if self._reader is None:
            whole = self.scope is not None and PLAIN in self.scope
            self._watch_reader(WHOLE_READ_S if whole else self._read_s)

    def resume_writing(self) -> None:
        """It has taken most of it."""
        super().resume_writing()
        if not self.transport.is_closing():
            self._watch_reader(None)

    def timeout_keep_alive_handler(self) -> None:
        """Close a connection that is not used, whether its client takes the last answer or not."""
        super().timeout_keep_alive_handler()
        self._watch_reader(CLOSE_S)

    def _watch_reader(self, seconds: float | None) -> None:
        """Look whether something of what is sent was taken in this time; None or 0: no more."""
        if self._reader is not None:
            self._reader.cancel()
            self._reader = None
        if seconds:
            self._unread = self.transport.get_write_buffer_size()
            self._reader = self.loop.call_later(seconds, self._check_reader, seconds)

    def _check_reader(self, seconds: float) -> None:
        """Go on with a client that takes what is sent; else end the connection with what is left of it."""
        if 0 < self.transport.get_write_buffer_size() < self._unread:
            self._watch_reader(seconds)
        else:
            self.transport.abort()

    def _look(self) -> None:
        """Watch the part of a request that is coming."""
        state, part = self.conn.their_state, None
        if state is h11.SEND_BODY:
            part = "body"
        elif state is h11.IDLE and self.conn.trailing_data[0]:
            part = "head"
        if part is None or part != self._part:  # a new connection is watched without a part
            self._begin(part)
        self._say_whether_it_waits()

    def _say_whether_it_waits(self) -> None:
        """Whether a request is not whole yet, so that the connection may be closed for another."""
        waits = self.conn.their_state in (h11.IDLE, h11.SEND_BODY)
        if self._connections is None or waits == self._waits:
            return
        self._waits = waits
        if waits:
            self._connections.waits(self._number, self.transport.abort)
        else:
            self._connections.is_answered(self._number)

    def _begin(self, part: str | None) -> None:
        if self._watch is not None:
            self._watch.cancel()
        self._part, self._received, self._watch = part, 0, None
        self._begun = self.loop.time()
        self._wait_on()

    def _wait_on(self) -> None:
        if self._part is not None:
            seconds = self._limits.body_s if self._part == "body" else self._limits.head_s
            self._watch = self.loop.call_later(seconds, self._over)

    def _over(self) -> None:
        """Go on with a body that comes fast enough; else close the connection."""
        enough = self._limits.body_s * self._limits.body_bytes_per_s
        late = self.loop.time() - self._begun > self._limits.whole_body_s
        if self._part == "body" and self._received >= enough and not late:
            self._received = 0
            self._wait_on()
            return
        if self.transport.is_closing():
            return
        answered = self._part == "body" and self.cycle.response_started
        if self._part is not None and not answered:
            self.transport.write(REFUSED)
        self.transport.close()
        self._watch_reader(CLOSE_S)


def uvicorn_config(
    app: ASGIApp, options: ServerOptions, connections: OpenConnections | None = None, **named: Any
) -> uvicorn.Config:
    """How uvicorn serves an application. connections: those that its sockets accept, if they are counted."""
    protocol = functools.partial(TimedProtocol, options=options, connections=connections)
    return uvicorn.Config(
        app, log_level="error", access_log=False, lifespan="off", ws="none", server_header=False,
        loop="asyncio",  # whose sockets accept as `open_connections` has them; uvloop's do not
        http=protocol,  # type: ignore[arg-type]
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
