"""Requests to a server of OpenAI's protocol: small ones for JSON, and streams that another thread can end.

Knows HTTP and its errors; nothing of what bodies and events mean.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from graphml.errors import ServerError, UsageError

CONNECT_S = 10.0
MOST_BYTES = 1 << 24
"""Of one answer that is no stream, and of one line of a stream."""


class ServerStream:
    """A server by its address. key: goes with each request, "" for none.

    UsageError for what is no address. `cancel` may be called at any time, by a signal handler too.
    """

    def __init__(self, address: str, key: str = "") -> None:
        parts = urlsplit(address)
        try:
            port = parts.port
        except ValueError:
            port = -1
        wrong = parts.scheme not in ("http", "https") or not parts.hostname or port == -1
        if wrong or parts.query or parts.fragment:
            raise UsageError(f"--server: wanted an address as http://127.0.0.1:8080; got {address!r}")
        self.address = address.rstrip("/")
        self._host, self._port, self._tls = str(parts.hostname), port, parts.scheme == "https"
        self._base = parts.path.rstrip("/").removesuffix("/v1")
        self._headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"
        self._socket: socket.socket | None = None
        self.cancelled = False

    def get(self, path: str) -> Any:
        """The JSON of a path; ServerError for anything else."""
        with self._answer("GET", path, None) as response:
            return self._json(response.read(MOST_BYTES))

    def events(self, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The objects of a stream of events; ServerError for a refusal, or an event that is an error.

        A cancelled stream ends like one that is over.
        """
        self.cancelled = False
        try:
            with self._answer("POST", path, json.dumps(body).encode()) as response:
                while line := response.readline(MOST_BYTES):
                    if line.startswith(b"data:") and (data := line[5:].strip()) != b"[DONE]":
                        event = self._json(data)
                        if "error" in event:
                            raise ServerError(f"{self.address}: {_message(event)}")
                        yield event
        except ServerError:
            if not self.cancelled:
                raise

    def cancel(self) -> None:
        """End the stream that is read."""
        self.cancelled = True
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    @contextlib.contextmanager
    def _answer(self, method: str, path: str, body: bytes | None) -> Iterator[http.client.HTTPResponse]:
        kind = http.client.HTTPSConnection if self._tls else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=CONNECT_S)
        try:
            connection.connect()
            self._socket = connection.sock
            self._socket.settimeout(CONNECT_S if method == "GET" else None)  # a prompt may take long
            if self.cancelled:
                self.cancel()
            connection.request(method, self._base + path, body, self._headers)
            with connection.getresponse() as response:
                if response.status != 200:
                    raise ServerError(f"{self.address}: {response.status}: {_told(response)}")
                yield response
        except TimeoutError:
            raise ServerError(f"{self.address}: no answer within {CONNECT_S:g} s") from None
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise ServerError(f"{self.address}: {reason}") from None
        finally:
            self._socket = None
            connection.close()

    def _json(self, raw: bytes) -> dict[str, Any]:
        try:
            decoded = json.loads(raw)
        except (ValueError, RecursionError):
            decoded = None
        if not isinstance(decoded, dict):
            raise ServerError(
                f"{self.address}: wanted JSON objects, got {raw[:60]!r}: no server of that protocol?"
            )
        return decoded


def _told(response: http.client.HTTPResponse) -> str:
    """What a refusal says, else what its status is called."""
    try:
        decoded = json.loads(response.read(MOST_BYTES))
    except (ValueError, RecursionError):
        decoded = None
    message = _message(decoded) if isinstance(decoded, dict) else ""
    return message or response.reason


def _message(body: dict[str, Any]) -> str:
    error = body.get("error")
    message = error.get("message") if isinstance(error, dict) else error
    return str(message or body.get("detail") or "an error")[:2000]
