"""The front of a server of several replicas: an ASGI application that lets requests in and passes them on.

Keys, their limits and the sizes of bodies are checked here, over all replicas. A request goes to the replica
that has read its beginning; what a replica keeps (responses, streams) is found where it is. Knows paths;
nothing of answers.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import msgspec
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from graphml.cluster.beginnings import Beginning
from graphml.cluster.forwarded import FORWARDED, ForwardedRequest, KeyOwner, ReplyEnd
from graphml.cluster.replica_set import ReplicaSet, Reply
from graphml.server.observing.request_log import Ended
from graphml.server.observing.server_metrics import key_metrics
from graphml.server.options.api_keys import ApiKeys
from graphml.server.options.server_options import HEALTH, ServerOptions
from graphml.server.protocols.request_body import limited_body
from graphml.server.responses.api_errors import ApiError, as_api_error, style_of
from graphml.server.responses.event_stream import client_left, error_event
from graphml.server.responses.json_response import error_response, json_response
from graphml.server.server_app import COUNTED, guards

KEPT = re.compile(r"/v1/responses/[^/]+(/cancel|/input_items)?|/v1/stream|/v1/chat/completions/control")
"""What one replica alone knows."""
OF_ONE = "needs a server of one replica: each has {} of its own"
REFUSED = {
    ("POST", "/lora-adapters"): OF_ONE.format("scales") + "; name the adapters in a request",
    ("POST", "/slots"): OF_ONE.format("slots"),
}
SAMPLE = re.compile(r"^([A-Za-z_:][A-Za-z0-9_:]*)(\{)?", re.ASCII)


class Front:
    """Passes requests on to replicas. What runs it asks whether it is busy, and has it drain."""

    def __init__(self, options: ServerOptions, replicas: ReplicaSet) -> None:
        self.options, self._replicas = options, replicas
        self.keys = ApiKeys(options.api_keys, options.api_key_file, options.file_keys)
        self.draining = False
        self._running = Counter[str | None]()
        self._totals: dict[tuple[str, str], ReplyEnd] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    def app(self, listeners: Sequence[Ended] = ()) -> Starlette:
        """The application, with what every request passes before."""
        methods = ["GET", "POST", "PUT", "DELETE"]
        return Starlette(
            routes=[Route("/{path:path}", _Endpoint(self), methods=methods)],
            middleware=guards(self.options, self.keys, listeners),
        )

    def busy(self) -> bool:
        """Whether a request is being answered."""
        return bool(self._tasks)

    def drain(self) -> None:
        """Let no further request in."""
        self.draining = True

    def cancel(self) -> None:
        """End all requests."""
        for task in list(self._tasks):
            task.cancel()

    async def answer(self, request: Request, receive: Receive, send: Send) -> None:
        """Answer one request."""
        scope = request.scope
        if scope["path"] in HEALTH:
            await (await self._health())(scope, receive, send)
            return
        if self.draining:
            raise ApiError(503, "the server is shutting down")
        self._check_kept_apart(scope)
        body = await limited_body(self.options.limits, request, bytes)
        asked = self._forwarded(scope, body)
        if asked.path in ("/metrics", "/slots") and asked.method == "GET":
            gathered = self._metrics if asked.path == "/metrics" else self._slots
            await (await gathered(asked))(scope, receive, send)
            return
        beginning = Beginning.of(body) if asked.method == "POST" else Beginning()
        async with self._counted(asked, beginning):
            reply = await self._unless_left(receive, self._begun(asked, beginning))
            if reply is not None:
                await self._pass_on(reply, scope, receive, send)

    async def _begun(self, asked: ForwardedRequest, beginning: Beginning) -> Reply:
        if KEPT.fullmatch(asked.path):
            return await self._replicas.find(asked)
        if asked.path.startswith("/engine/"):  # of one engine, the same at every look
            return await self._replicas.ask(asked, only=next(iter(await self._replicas.names()), ""))
        only = ""
        if isinstance(beginning.previous_response_id, str):
            path = f"/v1/responses/{quote(beginning.previous_response_id, safe='')}"
            kept = replace(asked, method="GET", path=path, query=b"", body=b"")
            only = await self._replicas.owner(kept)
        return await self._replicas.ask(asked, beginning.text, only)

    async def _unless_left(self, receive: Receive, work: Any) -> Reply | None:
        """A reply; None, and nobody computes it, where the client leaves before it begins."""
        working, gone = asyncio.ensure_future(work), asyncio.ensure_future(client_left(receive))
        try:
            await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
            return working.result() if working.done() else None
        finally:
            for task in (working, gone):
                task.cancel()
            await asyncio.gather(working, gone, return_exceptions=True)

    async def _pass_on(self, reply: Reply, scope: Scope, receive: Receive, send: Send) -> None:
        """Send a reply as it comes. One that is no stream begins once some of its body is there."""
        gone = asyncio.ensure_future(client_left(receive))
        sending = asyncio.ensure_future(self._sent(reply, scope, send))
        try:
            await asyncio.wait({sending, gone}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        finally:
            for task in (gone, sending):
                task.cancel()
            await asyncio.gather(gone, sending, return_exceptions=True)
            reply.close()

    async def _sent(self, reply: Reply, scope: Scope, send: Send) -> None:
        head, begun, held = reply.head, False, b""
        start = {"type": "http.response.start", "status": head.status, "headers": _own_headers(head.headers)}
        try:
            async for part in reply.body():
                if not begun:
                    await send(start)
                begun = True
                # The last part of a whole body waits until the reply has ended and is counted.
                part, held = (part, b"") if head.is_stream else (held, part)
                if part:
                    await send({"type": "http.response.body", "body": part, "more_body": True})
        except ApiError as error:
            if not begun:
                raise
            if not head.is_stream:
                raise ClientDisconnect from None  # the connection ends before the body does
            part = error_event(error.body(style := style_of(scope["path"])), style)
            await send({"type": "http.response.body", "body": part, "more_body": True})
        if not begun:
            await send(start)
        self._count(scope.get("graphml.key"), reply)
        await send({"type": "http.response.body", "body": held})

    @asynccontextmanager
    async def _counted(self, asked: ForwardedRequest, beginning: Beginning) -> AsyncIterator[None]:
        """Within, a request is one of its key's; ApiError where that is too much."""
        key = None if asked.owner is None else asked.owner.name
        use = self.keys.use_of(key) if asked.path in COUNTED and asked.method == "POST" else None
        n_answers = beginning.n if type(beginning.n) is int and beginning.n > 0 else 1
        if use is not None:
            use.begin(0, n_answers, self._running[key])
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._running[key] += n_answers
        try:
            yield
        finally:
            self._tasks.discard(task)
            self._running[key] -= n_answers

    def _count(self, key: str | None, reply: Reply) -> None:
        """Count what a replica has read and generated for a key since its reply before."""
        use, end = self.keys.use_of(key), reply.end
        if key is not None and use is not None and end is not None:
            before = self._totals.get((key, reply.head.replica), ReplyEnd(0, 0))
            self._totals[key, reply.head.replica] = end
            use.read(end.n_prompt - before.n_prompt)
            use.generated(end.n_generated - before.n_generated)

    def _forwarded(self, scope: Scope, body: bytes) -> ForwardedRequest:
        key = scope.get("graphml.key")
        use = self.keys.use_of(key)
        owner = None if use is None else KeyOwner(str(key), self.keys.folder_of(key), use.limits)
        headers = tuple(
            (name, value) for name, value in scope["headers"] if name.decode("latin-1") in FORWARDED
        )
        return ForwardedRequest(
            scope["method"], scope["path"], scope["query_string"], headers, body, owner,
            scope["graphml.request_id"],
        )  # fmt: skip

    def _check_kept_apart(self, scope: Scope) -> None:
        """ApiError 501 for what would change one replica and not the others."""
        for (method, path), why in REFUSED.items():
            if scope["method"] == method and (scope["path"] == path or scope["path"].startswith(f"{path}/")):
                raise ApiError(501, f"{path} {why}")

    async def _health(self) -> Response:
        if self.draining:
            return error_response(ApiError(503, "the server is shutting down"))
        if not (names := await self._replicas.names()):
            return error_response(ApiError(503, "no replica runs"))
        return json_response({"status": "ok", "replicas": len(names)})

    async def _metrics(self, asked: ForwardedRequest) -> Response:
        """Counts of each replica with its name as a label, and of keys over all of them."""
        replies = await self._replicas.each(asked)
        for head, body in replies.values():
            if head.status != 200:
                return Response(body, head.status, media_type="application/json")
        texts = {name: body.decode() for name, (_, body) in replies.items()}
        shares = [(place, use, self._running[owner]) for place, owner, use in self.keys.uses()]
        count = len(replies)
        own = "# HELP graphml:replicas Replicas that run.\n# TYPE graphml:replicas gauge\n"
        own += f"graphml:replicas {count}\n"
        return Response(labelled(texts) + own + key_metrics(shares), media_type="text/plain; version=0.0.4")

    async def _slots(self, asked: ForwardedRequest) -> Response:
        shown: list[Any] = []
        for name, (head, body) in (await self._replicas.each(asked)).items():
            if head.status != 200:
                return Response(body, head.status, media_type="application/json")
            shown += [{"replica": name, **slot} for slot in msgspec.json.decode(body)]
        return json_response(shown)


class _Endpoint:
    """The front as an ASGI application: whatever it raises becomes a response."""

    def __init__(self, front: Front) -> None:
        self._front = front

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        try:
            await self._front.answer(Request(scope, receive), receive, send)
        except ClientDisconnect:
            return
        except Exception as error:
            known = as_api_error(error)
            await error_response(known, style_of(scope["path"]))(scope, receive, send)


def labelled(texts: dict[str, str]) -> str:
    """Metrics of several replicas as one text: each sample with its replica, each name explained once."""
    about: dict[str, list[str]] = {}
    samples: dict[str, list[str]] = {}
    for replica, text in texts.items():
        family = ""
        for line in text.splitlines():
            if line.startswith("# "):
                family = line.split(" ", 3)[2]
                if replica == next(iter(texts)):
                    about.setdefault(family, []).append(line)
            elif sample := SAMPLE.match(line):
                label = f'replica="{replica}"'
                name, rest = sample[1], line[sample.end() :]
                joined = f"{name}{{{label},{rest}" if sample[2] else f"{name}{{{label}}}{rest}"
                samples.setdefault(family, []).append(joined)
    return "".join(f"{line}\n" for family in samples for line in (*about.get(family, ()), *samples[family]))


def _own_headers(headers: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Headers of a reply without those that the front writes itself."""
    return [
        (name, value)
        for name, value in headers
        if name.lower() not in (b"x-request-id", b"request-id", b"server")
    ]
