"""The models of a server, listed, loaded, unloaded and observed as by llama-server's router.

Knows names and states; nothing of what a model answers.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

import graphml
from graphml.server.engine.served_models import ServedModels
from graphml.server.engine.service import FINGERPRINT, ClosedModel
from graphml.server.protocols.request_body import limited_body
from graphml.server.requests.request_fields import LoadModel, decoded
from graphml.server.responses.api_errors import ApiError, unknown_model, wrong_field
from graphml.server.responses.event_stream import EventStream, event
from graphml.server.responses.json_response import json_response

NEVER_LOADED = {"object": "model", "created": 0, "owned_by": "graphml", "type": "model"}
"""Of a model that was never loaded, besides its name."""


async def health(models: ServedModels, request: Request) -> Response:
    """`GET /health`: 200 where requests are answered."""
    if models.dead():
        raise ApiError(503, "the engine has ended or does not move")
    if models.draining:
        raise ApiError(503, "the server is shutting down")
    asleep = not models.options.routes and isinstance(models.known(None), ClosedModel)
    return json_response({"status": "ok"} | ({"is_sleeping": True} if asleep else {}))


async def version(models: ServedModels, request: Request) -> Response:
    """`GET /version`: graphml's version, as vLLM's and SGLang's servers tell theirs."""
    return json_response({"version": graphml.__version__})


async def listed(models: ServedModels, request: Request) -> Response:
    """`GET /v1/models`: all models, with their states where there are several; `?reload=1`: read anew."""
    if request.query_params.get("reload") == "1" and models.options.routes:
        _check_admin(models, request)
        await models.list_again()
    if not models.options.routes:
        return json_response(models.known(None).listing())
    every = [_shown(models, name) for name in list(models.room.entries)]
    shown = [{"name": x["id"], "model": x["id"], "type": "model"} for x in every]
    ends = {"first_id": every[0]["id"], "last_id": every[-1]["id"]} if every else {}
    return json_response({"object": "list", "data": every, "models": shown, **ends, "has_more": False})


async def one_model(models: ServedModels, request: Request) -> Response:
    """`GET /v1/models/NAME`."""
    name = request.path_params["name"]
    entry = next((key for key in models.room.entries if name in models.names_of(key)), None)
    if entry is None:
        raise unknown_model(name, models.room.entries)
    return json_response(_shown(models, entry))


async def props(models: ServedModels, request: Request) -> Response:
    """`GET /props`: of the model that `?model=` names; without one, of a server that has no first one."""
    name = request.query_params.get("model")
    if name or models.has_first:
        return json_response(models.known(name).properties())
    options = models.options
    return json_response({
        "role": "router", "max_instances": options.models_max, "models_autoload": options.models_autoload,
        "model_alias": "", "model_path": "", "default_generation_settings": {"params": {}, "n_ctx": 0},
        "ui": options.page, "endpoint_mcp": options.mcp is not None, "build_info": FINGERPRINT,
    })  # fmt: skip


async def load(models: ServedModels, request: Request) -> Response:
    """`POST /models/load`: load a model; answers once it is."""
    await models.load(await _named(models, request))
    return json_response({"success": True})


async def unload(models: ServedModels, request: Request) -> Response:
    """`POST /models/unload`: close a model after its last request; answers once it is."""
    await models.unload(await _named(models, request))
    return json_response({"success": True})


async def observed(models: ServedModels, request: Request) -> EventStream:
    """`GET /models/sse`: what becomes of models, as events, until the client leaves."""

    async def events() -> AsyncGenerator[bytes, None]:
        async with aclosing(models.events()) as changes:
            async for change in changes:
                yield event(change)

    return EventStream(events(), models.options.ping, models.options.timeout, lambda: None)


async def _named(models: ServedModels, request: Request) -> str:
    """The model of a request of a key that may change what others get."""
    body = await limited_body(models.options.limits, request, lambda raw: decoded(raw, LoadModel))
    if not models.options.routes:
        raise ApiError(
            501, "This server does not load models. Start it with `--models-dir` or `--models-preset`"
        )
    _check_admin(models, request)
    if not body.model:
        raise wrong_field("model", "wanted the name of a model")
    return body.model


def _check_admin(models: ServedModels, request: Request) -> None:
    if not models.shared.is_admin(request.scope.get("graphml.key")):
        raise ApiError(403, "this key may not load models")


def _shown(models: ServedModels, name: str) -> dict[str, Any]:
    """An entry of the list."""
    service = models.last(name)
    entry: dict[str, Any] = {"id": name, "display_name": name, **NEVER_LOADED}
    if service is not None:
        entry = service.listing()["data"][0]
    return {**entry, **({"status": models.status(name)} if models.options.routes else {})}
