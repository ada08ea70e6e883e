"""What the page's engine view asks for: steps, sequences, blocks; the steps as a trace; the graph as a page.

Steps are recorded only while somebody looks. Knows an engine's values; no texts of requests leave it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import asdict

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from graphml.api.engine import Engine
from graphml.inspect.profile.trace import step_trace
from graphml.runtime.loop.timeline import Timeline

RECORDED = 20_000
"""Steps kept for the trace: minutes."""
MOST_STEPS = 1_000
"""Of one answer: the latest ones."""
FORGOTTEN_S = 60.0
"""Nobody has asked for so long: nobody looks."""


class EngineView:
    """What is told of one engine. graph: gives the HTML of the model's graph; may be slow."""

    NAMES = ("state", "trace", "graph")

    def __init__(self, engine: Engine, model: str, backend: str, graph: Callable[[], str]) -> None:
        self._engine, self._names, self._graph = engine, (model, backend), graph
        self._recording = ExitStack()
        self._timeline: Timeline | None = None
        self._asked_s = 0.0
        self._forgets: asyncio.Task[None] | None = None

    def handlers(self) -> dict[str, Callable[[Request], Awaitable[Response]]]:
        """What answers `GET /engine/state?after=NUMBER`, `/engine/trace` and `/engine/graph`."""
        return dict(zip(self.NAMES, (self._state, self._trace, self._page), strict=True))

    def close(self) -> None:
        """Record no more."""
        if self._forgets is not None:
            self._forgets.cancel()
        self._forgets = self._timeline = None
        self._recording.close()

    async def _state(self, request: Request) -> Response:
        after = request.query_params.get("after", "0")
        if not after.isdecimal() or len(after) > 18:
            wanted = f"after: wanted the number of a step; got {after[:40]!r}"
            error = {"message": wanted, "type": "invalid_request_error", "code": 400}
            return JSONResponse({"error": error}, 400)
        timeline = self._watched()
        steps = [step for step in timeline.steps if step.number >= int(after)]
        seen, stats = self._engine.snapshot(), self._engine.stats()
        return JSONResponse(
            {
                "now_s": time.monotonic(),
                "steps": [asdict(step) for step in steps[-MOST_STEPS:]],
                "sequences": [asdict(sequence) for sequence in seen.sequences],
                "blocks": {"count": seen.n_blocks, "size": seen.block_size, "kept": seen.kept},
                "stats": asdict(stats),
            }
        )

    async def _trace(self, request: Request) -> Response:
        steps = self._watched().steps
        return JSONResponse(await asyncio.to_thread(step_trace, steps, *self._names))

    async def _page(self, request: Request) -> Response:
        html = await asyncio.to_thread(self._graph)
        headers = {"Content-Security-Policy": "sandbox allow-scripts", "X-Content-Type-Options": "nosniff"}
        return Response(html, media_type="text/html", headers=headers)

    def _watched(self) -> Timeline:
        """The recording; it begins with the first who looks, and ends a while after the last."""
        self._asked_s = time.monotonic()
        if self._timeline is None:
            self._timeline = self._recording.enter_context(self._engine.timeline(RECORDED))
            self._forgets = asyncio.create_task(self._forget())
        return self._timeline

    async def _forget(self) -> None:
        while (left := self._asked_s + FORGOTTEN_S - time.monotonic()) > 0:
            await asyncio.sleep(left)
        self._forgets = None
        self.close()
