"""A server of the page whose answers a test writes: what a model says is not what is tested here."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from graphml.server.page import page_routes
from tests.server.served_app import served_routes

TOP = [["The", -0.1], ["A", -2.5], ["\n", -4.0]]


def chunk(delta: dict[str, Any], finish: str | None = None, **rest: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish, **rest}]}


def token(text: str, logprob: float, **rest: Any) -> dict[str, Any]:
    top = [{"token": one, "logprob": value, "bytes": None} for one, value in TOP]
    entry = {"token": text, "logprob": logprob, "bytes": None, "top_logprobs": top, **rest}
    return chunk({"content": text}, logprobs={"content": [entry]})


@dataclass
class Script:
    """What a test writes.

    answers: chunks of each chat request, in turn; an endless wait for None. bodies: what came in; names: of
    their streams. rest: what a stream that is read on has; asked: how it was. files: models to choose from.
    has_template: what the props say of the model.
    tools: of MCP servers; results: of their calls, in turn, an endless wait for None; calls: what came in.
    """

    answers: list[list[dict[str, Any] | None]] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    left: int = 0
    key: str = ""
    state: dict[str, Any] = field(default_factory=dict)
    deterministic: bool = True
    names: list[str | None] = field(default_factory=list)
    asked: list[tuple[str, str, str | None]] = field(default_factory=list)
    rest: list[dict[str, Any] | None] | None = None
    files: list[str] = field(default_factory=list)
    served: str = "scripted"
    has_template: bool = True
    unscored: bool = False  # a model that has no probabilities
    tools: list[dict[str, Any]] = field(default_factory=list)
    results: list[str | None] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)

    async def chat(self, request: Request) -> Response:
        if self.key and request.headers.get("authorization") != f"Bearer {self.key}":
            return JSONResponse({"error": {"message": "Invalid API Key", "code": 401}}, 401)
        self.bodies.append(await request.json())
        self.names.append(request.headers.get("x-conversation-id"))
        if "refused" in self.bodies[-1].get("grammar", ""):
            error = {"message": "Field 'grammar': wanted a rule root", "param": "grammar", "code": 400}
            return JSONResponse({"error": error}, 400)
        if self.unscored and "logprobs" in self.bodies[-1]:
            error = {"message": "logprobs: a diffusion model has none", "param": "logprobs", "code": 400}
            return JSONResponse({"error": error}, 400)
        return StreamingResponse(self._events(self.answers.pop(0)), media_type="text/event-stream")

    async def resumed(self, request: Request) -> Response:
        self.asked.append((request.method, request.query_params["conv_id"], request.query_params.get("from")))
        if request.method == "DELETE":
            return JSONResponse({"success": True})
        if self.rest is None:
            return JSONResponse({"error": {"message": "there is no stream of this name", "code": 404}}, 404)
        return StreamingResponse(self._events(self.rest), media_type="text/event-stream")

    async def _events(self, answer: list[dict[str, Any] | None]) -> AsyncIterator[str]:
        yield ": ping\n\n"
        try:
            for one in answer:
                if one is None:
                    await asyncio.sleep(60)
                yield f"data: {json.dumps(one)}\n\n"
            yield "data: [DONE]\n\n"
        except asyncio.CancelledError:
            self.left += 1
            raise

    async def props(self, request: Request) -> Response:
        settings = {"n_ctx": 512, "params": {"temperature": 0.8, "seed": (1 << 32) - 1, "max_tokens": -1}}
        return JSONResponse(
            {
                "model_alias": request.query_params.get("model", self.served),
                "model_path": "it's scripted.gguf",
                "default_generation_settings": settings,
                "endpoint_mcp": bool(self.tools),
                "has_chat_template": self.has_template,
                "deterministic": self.deterministic,
            }
        )

    async def offered(self, request: Request) -> Response:
        return JSONResponse({"tools": self.tools})

    async def call(self, request: Request) -> Response:
        self.calls.append(await request.json())
        result = self.results.pop(0)
        if result is None:
            await asyncio.sleep(60)
        return JSONResponse({"content": result})

    async def models(self, request: Request) -> Response:
        states = {name: "loaded" if name == self.served else "unloaded" for name in self.files}
        every = [{"id": name, "status": {"value": state}} for name, state in states.items()]
        return JSONResponse({"object": "list", "data": every or [{"id": "scripted"}]})

    async def template(self, request: Request) -> Response:
        return JSONResponse({"prompt": "".join(one["content"] for one in (await request.json())["messages"])})

    async def tokenize(self, request: Request) -> Response:
        wanted = (await request.json()).get("model")  # which is loaded by it
        if wanted == "broken":
            return JSONResponse({"error": {"message": "broken: cannot be served", "code": 400}}, 400)
        self.served = wanted or self.served
        words = (await request.json())["content"].split()
        return JSONResponse({"tokens": [{"id": i, "piece": f"{one} "} for i, one in enumerate(words)]})

    async def engine(self, request: Request) -> Response:
        return JSONResponse(self.state)


@contextmanager
def served(script: Script) -> Iterator[str]:
    """The address of the page, served by a thread while within."""
    post = {"methods": ["POST"]}
    routes = [
        *page_routes(), Route("/props", script.props), Route("/v1/models", script.models),
        Route("/v1/chat/completions", script.chat, **post),
        Route("/apply-template", script.template, **post), Route("/tokenize", script.tokenize, **post),
        Route("/engine/state", script.engine),
        Route("/v1/stream", script.resumed, methods=["GET", "DELETE"]),
        Route("/mcp/tools", script.offered), Route("/mcp/call", script.call, **post),
    ]  # fmt: skip
    with served_routes(routes) as address:
        yield address
