"""The replicas of a server as its front asks them: one that knows a beginning, a certain one, or each.

A reply that has not begun is asked for again where its replica ends. Knows handles of Ray Serve; nothing of
sockets or of what requests mean.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import ray

from graphml.cluster.forwarded import ForwardedRequest, ReplyEnd, ReplyHead
from graphml.cluster.replica import GONE
from graphml.server.responses.api_errors import ApiError

RUNNING: dict[str, tuple[str, ...]] = {}
"""Names of the running replicas of each application that this process asks, as its router says."""
FIRST_S = 2.0
"""Seconds in which a first replica must answer."""
TRIES = 3
"""Replicas that a request may end before it is answered with an error: it may be what ends them."""
DIED = (ray.exceptions.RayActorError, ray.exceptions.NodeDiedError, ray.exceptions.ActorUnavailableError)


class Reply:
    """A reply whose head has come. The body is read once, or the reply closed."""

    def __init__(self, head: ReplyHead, parts: Any, response: Any) -> None:
        self.head, self._parts, self._response = head, parts, response
        self.end: ReplyEnd | None = None

    async def body(self) -> AsyncIterator[bytes]:
        """The parts of the body. ApiError 503 where the replica ends before."""
        try:
            async for part in self._parts:
                if isinstance(part, ReplyEnd):
                    self.end = part
                else:
                    yield part
        except ray.exceptions.RayError:
            raise ApiError(503, "the replica that answered has ended; ask again") from None
        finally:
            self.close()

    async def whole(self) -> bytes:
        """All of the body."""
        return b"".join([part async for part in self.body()])

    def close(self) -> None:
        """Nobody reads it on: what computes it ends."""
        with contextlib.suppress(Exception):
            self._response.cancel()


class ReplicaSet:
    """Replicas of one application. handle: of its deployment, from `serve.run`."""

    def __init__(self, handle: Any, application: str) -> None:
        self._handle, self._application = handle, application

    async def names(self) -> tuple[str, ...]:
        """Those that run. Their router knows them once one was asked."""
        if not RUNNING.get(self._application):
            with contextlib.suppress(TimeoutError, *DIED):
                await asyncio.wait_for(self._handle.name.remote(), FIRST_S)
        return RUNNING.get(self._application, ())

    async def ask(self, asked: ForwardedRequest, text: str = "", only: str = "") -> Reply:
        """A reply, from the replica that is named or one that knows the beginning `text`.

        ApiError 404 where the named one has ended, 500 for a request that has ended several.
        """
        for _ in range(TRIES):
            response = self._handle.options(stream=True).reply.remote(asked, text=text, only=only)
            parts = response.__aiter__()
            try:
                head = await anext(parts)
            except DIED:
                if only:
                    break
                await asyncio.sleep(0)
                continue
            except BaseException:
                response.cancel()
                raise
            if head.status != GONE:
                return Reply(head, parts, response)
            break
        if only:
            raise ApiError(404, "the replica that held this has ended")
        raise ApiError(500, f"{TRIES} replicas ended while they answered this request")

    async def find(self, asked: ForwardedRequest) -> Reply:
        """The reply of the replica that knows what is asked for: the first that is no 404, else a 404."""
        reply = None
        for name in await self.names():
            with contextlib.suppress(ApiError):
                if reply is not None:
                    reply.close()
                reply = await self.ask(asked, only=name)
                if reply.head.status != 404:
                    return reply
        return await self.ask(asked) if reply is None else reply

    async def owner(self, asked: ForwardedRequest) -> str:
        """The name of the replica that knows what is asked for, "" for none."""
        for name in await self.names():
            with contextlib.suppress(ApiError):
                reply = await self.ask(asked, only=name)
                reply.close()
                if reply.head.status == 200:
                    return name
        return ""

    async def each(self, asked: ForwardedRequest) -> dict[str, tuple[ReplyHead, bytes]]:
        """What each replica replies, by its name; those that end in the meantime are left out."""

        async def whole(name: str) -> tuple[ReplyHead, bytes]:
            reply = await self.ask(asked, only=name)
            return reply.head, await reply.whole()

        names = await self.names()
        replies = await asyncio.gather(*map(whole, names), return_exceptions=True)
        return {
            name: reply
            for name, reply in zip(names, replies, strict=True)
            if not isinstance(reply, BaseException)
        }
