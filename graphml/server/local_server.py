"""A server's application in this process, asked without a network: a request's answer is what a client gets.

Knows ASGI; nothing of files or of what is asked.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping, MutableMapping
from typing import Any

from starlette.types import ASGIApp, Message, Send

from graphml.api.model import Model
from graphml.server.engine.served_models import ServedModels
from graphml.server.engine.service import Service, SharedParts
from graphml.server.options.server_options import ServerOptions
from graphml.server.server_app import server_app
from graphml.system.closing import Closing


class LocalServer(Closing):
    """A model that answers requests of a server's endpoints. The model stays open when this is closed."""

    def __init__(self, model: Model, options: ServerOptions) -> None:
        shared = SharedParts(options)
        self._service = Service(model, options, shared)
        self._models = ServedModels(shared, dict, self._service)
        self._app = server_app(self._models)

    n_engines = 1

    @property
    def is_dead(self) -> bool:
        """Whether the engine has ended."""
        return self._models.dead()

    async def answer(self, path: str, body: Mapping[str, Any]) -> tuple[int, Any]:
        """The status and the JSON that a POST is answered with; cancelled, the request ends."""
        content = json.dumps(body).encode()
        scope = http_scope("POST", path, [(b"content-type", b"application/json")], content)
        status, parts = 0, list[bytes]()

        async def send(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            status = message.get("status", status)
            parts.append(message.get("body", b""))

        await call(self._app, scope, content, send)
        return status, json.loads(b"".join(parts))

    def cancel(self) -> None:
        """End all requests."""
        self._models.cancel()

    def close(self) -> None:
        """End the engine."""
        self._service.access.close()


def http_scope(
    method: str, path: str, headers: Iterable[tuple[bytes, bytes]], body: bytes, query: bytes = b""
) -> dict[str, Any]:
    """ASGI's scope of a request that comes by no socket."""
    return {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "path": path,
        "raw_path": path.encode(), "query_string": query, "root_path": "", "scheme": "http",
        "headers": [*headers, (b"content-length", str(len(body)).encode())],
        "client": ("127.0.0.1", 0), "server": ("127.0.0.1", 0), "state": {},
    }  # fmt: skip


async def call(app: ASGIApp, scope: dict[str, Any], body: bytes, send: Send) -> None:
    """Have an application answer a request of a client that stays; where this is cancelled, it has left."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        if messages:
            return messages.pop()
        await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    await app(scope, receive, send)
