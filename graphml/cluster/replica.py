"""A replica of a server: a model and the application of `graphml serve` in an actor of Ray Serve.

Requests come from the front, which has checked keys and limits. Knows the application; nothing of sockets.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from ray import serve
from starlette.middleware import Middleware
from starlette.types import Message

from graphml.api.load_model import load_model
from graphml.cluster.forwarded import ForwardedRequest, KeyOwner, ReplyEnd, ReplyHead
from graphml.cluster.node_check import Wanted, prepared
from graphml.errors import BackendError
from graphml.runtime.programs.load_options import LoadOptions
from graphml.server.access.text_limits import Held
from graphml.server.engine.served_models import ServedModels
from graphml.server.engine.service import Service, SharedParts
from graphml.server.local_server import call, http_scope
from graphml.server.observing.request_log import RequestLog
from graphml.server.options.server_options import ServerOptions
from graphml.server.responses.json_response import ANSWERS
from graphml.server.server_app import server_app

GONE = 410
"""The status of a request for another replica, which has ended since."""


class Replica:
    """Answers forwarded requests. wanted, source: as of `prepared`; None: the model is found by `path`."""

    def __init__(
        self,
        path: Path | str,
        wanted: Wanted | None,
        source: str,
        opening: LoadOptions,
        options: ServerOptions,
    ) -> None:
        model = load_model(path if wanted is None else prepared(wanted, source), opening)
        # Keys come with requests: those of a file may change while this replica runs.
        self._options = replace(options, api_keys=(), api_key_file=None, file_keys=(), prefix="")
        self._shared = SharedParts(self._options)
        self._service = Service(model, self._options, self._shared)
        self._models = ServedModels(self._shared, dict, self._service)
        self._app = server_app(self._models, middleware=[Middleware(RequestLog)])
        self._answers = Held(options.limits.held_bytes)
        self._name = str(serve.get_replica_context().replica_id.unique_id)

    async def name(self) -> str:
        """The replica's name, and that it answers."""
        return self._name

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """What `replicas_wanted` counts with: answers that wait, that run, the share of blocks in use."""
        stats = self._service.stats()
        if stats is None:
            return {}
        blocks = stats.blocks_used / max(1, stats.blocks_used + stats.blocks_free)
        return {"waiting": float(stats.waiting), "running": float(stats.running), "blocks": blocks}

    async def check_health(self) -> None:
        """Ray Serve starts a replica again that raises here."""
        if self._models.dead():
            raise BackendError("the engine has ended or does not move")

    async def reply(
        self, asked: ForwardedRequest, text: str = "", only: str = ""
    ) -> AsyncIterator[ReplyHead | bytes | ReplyEnd]:
        """The parts of a reply. text: the beginning it was routed by; only: the replica that is meant."""
        if only not in ("", self._name):
            yield ReplyHead(GONE, (), self._name)
            return
        messages: asyncio.Queue[Message | None] = asyncio.Queue()
        answering = asyncio.ensure_future(self._answered(asked, messages))
        try:
            while (message := await messages.get()) is not None:
                if message["type"] == "http.response.start":
                    yield ReplyHead(message["status"], tuple(message.get("headers", ())), self._name)
                elif message.get("body"):
                    yield message["body"]
            answering.result()
        finally:
            # The front has left its reply: so has the client.
            answering.cancel()
            await asyncio.gather(answering, return_exceptions=True)
        use = None if asked.owner is None else self._shared.keys.use_of(asked.owner.name)
        yield ReplyEnd() if use is None else ReplyEnd(use.prompt_tokens, use.generated_tokens)

    async def _answered(self, asked: ForwardedRequest, messages: asyncio.Queue[Message | None]) -> None:
        headers = [*asked.headers, (b"x-request-id", asked.id.encode())]
        scope: dict[str, Any] = http_scope(asked.method, asked.path, headers, asked.body, asked.query)
        scope |= {"graphml.arrived": time.monotonic(), "graphml.key": self._adopted(asked.owner)}
        scope[ANSWERS] = self._answers

        async def send(message: Message) -> None:
            messages.put_nowait(message)

        try:
            await call(self._app, scope, asked.body, send)
        finally:
            messages.put_nowait(None)

    def _adopted(self, owner: KeyOwner | None) -> str | None:
        """The name of a request's owner, known from now on; the front counts what it has used."""
        if owner is None:
            return None
        limits = replace(owner.limits, requests=None, tokens=None, streams=None)
        self._shared.keys.adopt(owner.name, owner.folder, limits)
        return owner.name
