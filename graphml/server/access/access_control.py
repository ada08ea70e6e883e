"""Who may ask: keys, hosts, origins and the size of bodies, before anything is routed.

Knows headers; nothing of what requests mean. An ASGI middleware.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, MutableMapping
from typing import Any, Literal
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from graphml.server.access.text_limits import Held
from graphml.server.options.api_keys import ApiKeys
from graphml.server.options.server_options import HEALTH, ServerOptions, is_path
from graphml.server.page.page_files import ROOT, VERSION
from graphml.server.responses.api_errors import ApiError, style_of
from graphml.server.responses.json_response import ANSWERS, error_response
from graphml.system.pages import give_back_free_memory

PUBLIC = HEALTH
PAGE = {*ROOT, VERSION}
"""What the page itself is made of, besides `/page/NAME`."""
LOCAL = {"localhost", "127.0.0.1", "::1"}
LONGEST_PATH = 2048
BIG = 128 << 10
"""Bytes of a body that is read, whatever others send; larger ones count among those that are held."""
GIVE_BACK_S = 1.0
"""Seconds behind the last of several big bodies after which their memory is given back."""
EFFECTS = ("/engine/", "/v1/stream")
"""Where reading changes something, too: steps are recorded, a stream is kept."""


class AccessControl:
    """Refuses what may not be asked: 401 without a key, 403 for another host or site, 413 for a big body."""

    def __init__(self, app: ASGIApp, options: ServerOptions, keys: ApiKeys) -> None:
        self._app, self._options, self._keys = app, options, keys
        self._gives_back = False
        self._bodies, self._answers = (Held(options.limits.held_bytes) for _ in range(2))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, refuse or pass on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope["graphml.arrived"] = time.monotonic()
        headers, path = Headers(scope=scope), self._path(scope)
        shared = self._cors(headers)
        reply = _with_headers(send, shared)
        if scope["method"] == "OPTIONS":
            await _options(reply)
            return
        try:
            if len(path) > LONGEST_PATH:
                raise ApiError(414, f"the path: at most {LONGEST_PATH} characters are wanted")
            self._check_host(scope, headers)
            acts = scope["method"] not in ("GET", "HEAD") or path.startswith(EFFECTS)
            if acts and page_of(headers) == "foreign" and not shared:
                raise ApiError(403, "a page of another site asks; `--cors-origins` names those that may")
            scope["graphml.key"] = self._key(headers, path)
            length = headers.get("content-length", "")
            self.check_size(int(length) if length.isdecimal() else 0)
        except ApiError as error:
            await error_response(error, style_of(path))(scope, receive, reply)
            return
        scope[ANSWERS], body = self._answers, _Body(receive, self.check_size, self._bodies)
        try:
            await self._app(scope, body.receive, reply)
        finally:
            self._bodies.add(-body.held)
            if body.held and not self._bodies.count and not self._gives_back:
                self._gives_back = True
                asyncio.get_running_loop().call_later(GIVE_BACK_S, self._give_back)

    def _give_back(self) -> None:
        """Return to the system what the allocator keeps of big bodies, in small parts; in a thread."""
        self._gives_back = False
        asyncio.get_running_loop().run_in_executor(None, give_back_free_memory)

    def _path(self, scope: MutableMapping[str, Any]) -> str:
        path: str = scope["path"]
        if self._options.prefix and path.startswith(self._options.prefix):
            scope["path"] = path = path[len(self._options.prefix) :] or "/"
        return path

    def _check_host(self, scope: Scope, headers: Headers) -> None:
        """A page of another site that names this address by its own name is refused (DNS rebinding).

        No page can ask at a UNIX socket, and a proxy that does may pass on the Host that it was asked by.
        """
        by_path = is_path((scope.get("server") or ("",))[0])
        if not self._options.loopback or self._keys or by_path:
            return
        if _host_of(f"//{headers.get('host', 'localhost')}") not in LOCAL:
            raise ApiError(403, "the Host header names another host than this one")

    def _key(self, headers: Headers, path: str) -> str | None:
        """Whose request it is, a name for each key; ApiError 401 for nobody's."""
        if not self._keys or path in PUBLIC or path in PAGE or path.startswith("/page/"):
            return None
        kind, _, token = headers.get("authorization", "").partition(" ")
        key = token.strip() if kind.lower() == "bearer" else headers.get("x-api-key", "")
        owner = self._keys.owner_of(key)
        if owner is None:
            raise ApiError(401, "Invalid API Key")
        return owner

    def _cors(self, headers: Headers) -> list[tuple[bytes, bytes]]:
        """Headers for pages of other origins. Without keys there are none, as any page could then ask."""
        origin, allowed = headers.get("origin"), self._options.cors_origins
        if origin is None:
            return []
        if allowed is None:
            allowed = ("*",) if self._keys else ()
        local = "localhost" in allowed and _host_of(origin) in LOCAL
        if "*" not in allowed and origin not in allowed and not local:
            return []
        return [
            (b"access-control-allow-origin", origin.encode("latin-1", "replace")),
            (b"access-control-allow-credentials", b"true"),
            (b"access-control-allow-methods", b"GET, POST, DELETE, OPTIONS"),
            (b"access-control-allow-headers", b"*"),
            (b"vary", b"Origin"),
        ]

    def check_size(self, count: int) -> None:
        """ApiError 413 for a body of so many bytes."""
        if count > self._options.limits.body_bytes:
            raise ApiError(413, f"the body: at most {self._options.limits.body_bytes} bytes are wanted")


class _Body:
    """A body on its way: counted as it comes, and held once it is a big one."""

    def __init__(self, receive: Receive, check: Callable[[int], None], bodies: Held) -> None:
        self._receive, self._check, self._bodies = receive, check, bodies
        self._count = self.held = 0

    async def receive(self) -> Message:
        """The next message; ApiError where a body without a length, or all together, are too large."""
        message = await self._receive()
        self._count += len(message.get("body", b""))
        self._check(self._count)
        if self._count > BIG and self.held < self._count:
            self._bodies.add(self._count - self.held)
            self.held = self._count
        return message


def page_of(headers: Headers) -> Literal["own", "foreign", "unknown"]:
    """Whose page makes a request, as its browser says: this server's, another's, or none that is known of.

    The type of the body tells nothing: a page may send text to any server without asking it before.
    """
    site, origin = headers.get("sec-fetch-site", "none"), headers.get("origin")
    if site != "none":
        return "own" if site == "same-origin" else "foreign"
    if origin is None:  # no browser, or a page's own GET over plain HTTP
        return "unknown"
    _, _, host = origin.partition("://")
    return "own" if host and host == headers.get("host") else "foreign"


def _host_of(address: str) -> str | None:
    """The host of an address; None where it is no address."""
    try:
        return urlsplit(address).hostname
    except ValueError:
        return None


def _with_headers(send: Send, more: list[tuple[bytes, bytes]]) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            every = [*message.get("headers", ()), *more, (b"server", b"graphml")]
            message["headers"] = [
                (name.title(), value) for name, value in every
            ]  # as most servers write them
        await send(message)

    return sending


async def _options(send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})
