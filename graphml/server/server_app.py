"""The application: which handler answers which path, and how errors become responses.

Knows routes; the protocols are in files of their own.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from msgspec import Struct
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from graphml.api.mcp_servers import McpServers
from graphml.api.model import Model
from graphml.errors import similar
from graphml.inspect.dumps.without_weights import describe_model
from graphml.inspect.viewer.page import render
from graphml.server.access.access_control import AccessControl
from graphml.server.engine.saved_slots import ACTIONS
from graphml.server.engine.served_models import ServedModels
from graphml.server.engine.service import ASKED_NAME, Service, cancel_all
from graphml.server.engine_view import EngineView
from graphml.server.mcp_calls import McpCalls
from graphml.server.observing.request_log import Ended, RequestLog, print_line
from graphml.server.openapi_document import openapi_document
from graphml.server.options.api_keys import ApiKeys
from graphml.server.options.server_options import HEALTH, ServerOptions
from graphml.server.page import page_routes
from graphml.server.protocols import (
    activations,
    anthropic_messages,
    embeddings,
    llama_completion,
    llama_infill,
    llama_models,
    llama_state,
    llama_tokens,
    mistral_fim,
    ollama,
    openai_chat,
    openai_responses,
)
from graphml.server.protocols import openai_completions as completions
from graphml.server.protocols.anthropic_messages import Messages
from graphml.server.protocols.request_body import DECODED, limited_body
from graphml.server.protocols.responses_input import Responses
from graphml.server.requests.request_fields import (
    ChatCompletion,
    Completion,
    Control,
    Detokenize,
    Embeddings,
    Infill,
    LoadModel,
    Rerank,
    SlotFile,
    TextCompletion,
    Tokenize,
    as_object,
    converted,
)
from graphml.server.requests.unknown_fields import LoggedOnce, naming, unknown_fields
from graphml.server.responses.api_errors import ApiError, as_api_error, style_of, wrong_field
from graphml.server.responses.json_response import error_response, gone, json_response

LOG = logging.getLogger(__name__)
UNKNOWN = "graphml.unknown_fields"
"""In a scope: names in the body that the endpoint does not have."""
MOST_SHOWN = 80
"""Characters of an unknown path that an error repeats."""
Handler = Callable[[Service, Request], Awaitable[Any]]
ServerHandler = Callable[[ServedModels, Request], Awaitable[Any]]
HANDLERS: tuple[tuple[str, str, Handler], ...] = (
    ("POST", "/v1/chat/completions /chat/completions", openai_chat.chat),
    ("POST", "/v1/chat/completions/input_tokens /chat/completions/input_tokens", openai_chat.input_tokens),
    ("POST", "/v1/completions", completions.completions),
    ("POST", "/v1/fim/completions /fim/completions", mistral_fim.fim_completions),
    ("POST", "/completion /completions", llama_completion.completion),
    ("POST", "/infill", llama_infill.infill),
    ("POST", "/apply-template", openai_chat.apply_template),
    ("POST", "/predict", openai_chat.predict),
    ("POST", "/v1/responses /responses", openai_responses.responses),
    ("POST", "/v1/responses/input_tokens /responses/input_tokens", openai_responses.input_tokens),
    ("POST", "/v1/messages", anthropic_messages.messages),
    ("POST", "/v1/messages/count_tokens", anthropic_messages.count_tokens),
    ("POST", "/api/chat", ollama.chat),
    ("POST", "/api/generate", ollama.generate),
    ("POST", "/api/embed", ollama.embed),
    ("POST", "/api/embeddings", ollama.embeddings),
    ("POST", "/api/show", ollama.show),
    ("POST", "/tokenize", llama_tokens.tokenize),
    ("POST", "/detokenize", llama_tokens.detokenize),
    ("GET", "/tokenizer_info", llama_tokens.tokenizer_info),
    ("POST", "/v1/activations", activations.activations),
    ("POST", "/v1/embeddings", embeddings.embeddings),
    ("POST", "/embedding /embeddings", embeddings.llama_embeddings),
    ("POST", "/v1/rerank /rerank /reranking /v1/reranking", embeddings.rerank),
    ("POST", "/props", llama_state.set_props),
    ("GET", "/slots", llama_state.slots),
    ("POST", "/slots/{slot:int}", llama_state.change_slot),
    ("GET", "/lora-adapters", llama_state.lora_adapters),
    ("POST", "/lora-adapters", llama_state.set_lora_adapters),
)
"""Method, paths and handler of each endpoint of a model."""
UNCOUNTED: frozenset[Handler] = frozenset((
    openai_chat.input_tokens, openai_chat.apply_template, openai_responses.input_tokens,
    anthropic_messages.count_tokens, ollama.show, llama_tokens.tokenize, llama_tokens.detokenize,
    llama_state.set_props, llama_state.change_slot, llama_state.set_lora_adapters,
))  # fmt: skip
"""Handlers of POST requests that use nothing of what a key may use."""
COUNTED: frozenset[str] = frozenset(
    path
    for method, paths, handler in HANDLERS
    if method == "POST" and handler not in UNCOUNTED
    for path in paths.split()
)
"""Paths whose POST requests count among those of a key."""


async def openapi(models: ServedModels, request: Request) -> Any:
    """`GET /openapi.json`: the OpenAPI document of these endpoints."""
    every = [
        (method, path, handler)
        for method, paths, handler in (*SERVER_HANDLERS, *HANDLERS)
        for path in paths.split()
    ]
    routes = [
        (method, path, (handler.__doc__ or "").strip().splitlines()[0]) for method, path, handler in every
    ]
    bodies: dict[str, type[Struct]] = {
        path: BODIES[handler] for _, path, handler in every if handler in BODIES
    }
    chosen = {
        f"{method} {path}": QUERIES.get(f"{method} {path}", {}) | WHICH_MODEL
        for method, paths, _ in HANDLERS
        for path in paths.split()
    }
    return json_response(openapi_document(routes, bodies, QUERIES | chosen))


SERVER_HANDLERS: tuple[tuple[str, str, ServerHandler], ...] = (
    ("GET", " ".join(sorted(HEALTH)), llama_models.health),
    ("GET", "/version", llama_models.version),
    ("GET", "/models /v1/models", llama_models.listed),
    ("POST", "/models/load", llama_models.load),
    ("POST", "/models/unload", llama_models.unload),
    ("GET", "/models/sse", llama_models.observed),
    ("GET", "/models/{name:path} /v1/models/{name:path}", llama_models.one_model),
    ("GET", "/props", llama_models.props),
    ("POST", "/v1/chat/completions/control", openai_chat.control),
    ("GET", "/v1/responses/{id}", openai_responses.stored_response),
    ("GET", "/v1/responses/{id}/input_items", openai_responses.listed_items),
    ("POST", "/v1/responses/{id}/cancel", openai_responses.cancel_response),
    ("DELETE", "/v1/responses/{id}", openai_responses.delete_response),
    ("GET", "/v1/stream", llama_state.resumed),
    ("DELETE", "/v1/stream", llama_state.end_stream),
    ("GET", "/metrics", llama_state.metrics),
    ("POST", "/api/pull", ollama.pull),
    ("GET", "/api/tags", ollama.tags),
    ("GET", "/api/ps", ollama.ps),
    ("GET", "/api/version", ollama.version),
)
"""The same of the server as a whole: no model is loaded or kept awake for them."""


BODIES: dict[Handler | ServerHandler, type[Struct]] = {
    llama_models.load: LoadModel,
    llama_models.unload: LoadModel,
    openai_chat.chat: ChatCompletion,
    openai_chat.input_tokens: ChatCompletion,
    openai_chat.control: Control,
    openai_chat.apply_template: ChatCompletion,
    completions.completions: TextCompletion,
    mistral_fim.fim_completions: mistral_fim.FimCompletion,
    llama_completion.completion: Completion,
    llama_infill.infill: Infill,
    llama_state.change_slot: SlotFile,
    openai_responses.responses: Responses,
    openai_responses.input_tokens: Responses,
    anthropic_messages.messages: Messages,
    anthropic_messages.count_tokens: Messages,
    llama_tokens.tokenize: Tokenize,
    llama_tokens.detokenize: Detokenize,
    embeddings.embeddings: Embeddings,
    embeddings.llama_embeddings: Embeddings,
    embeddings.rerank: Rerank,
    activations.activations: activations.Activations,
    ollama.chat: ollama.OllamaChat,
    ollama.generate: ollama.OllamaGenerate,
    ollama.embed: ollama.OllamaEmbed,
    ollama.embeddings: ollama.OllamaEmbeddings,
    ollama.show: ollama.OllamaShow,
    ollama.pull: ollama.OllamaPull,
}
"""What the bodies of requests are decoded as."""


SWITCH = {"true": True, "1": True, "false": False, "0": False}
WHICH_MODEL = {"model": {"type": "string"}, "autoload": {"enum": list(SWITCH)}}
"""Parameters behind the question mark of all endpoints of a model."""
QUERIES: dict[str, dict[str, Any]] = {
    "GET /props": {"model": {"type": "string"}},
    "GET /metrics": {"model": {"type": "string"}},
    "GET /v1/models": {"reload": {"type": "string"}},
    "GET /models": {"reload": {"type": "string"}},
    "GET /v1/responses/{id}": {
        "stream": {"type": "boolean"}, "starting_after": {"type": "integer", "minimum": -1},
    },
    "GET /v1/responses/{id}/input_items": {
        "order": {"enum": ["asc", "desc"]}, "limit": {"type": "integer", "minimum": 1, "maximum": 100},
        "after": {"type": "string"},
    },
    "POST /slots/{slot:int}": {"action": {"enum": list(ACTIONS)}},
    "GET /slots": {"fail_on_no_slot": {"type": "string"}},
    "DELETE /v1/stream": {"conv_id": {"type": "string"}},
    "GET /v1/stream": {"conv_id": {"type": "string"}, "from": {"type": "integer", "minimum": 0}},
}  # fmt: skip
"""Parameters behind the question mark, by method and path."""


class Endpoint:
    """A handler as an ASGI application: whatever it raises becomes a response.

    The model is the one that the body's `model` names, or ollama's `name`, or else the query's `model`.
    """

    def __init__(self, models: ServedModels, handler: Handler) -> None:
        self._models, self._handler = models, handler
        kind = BODIES.get(handler)
        self._kind = kind if kind is not None and "model" in kind.__struct_fields__ else None
        self._logged = LoggedOnce()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        request = Request(scope, receive)
        async with contextlib.AsyncExitStack() as stack:
            # uvicorn keeps the scope until the connection's next request, or the garbage collector comes.
            stack.callback(scope.pop, DECODED, None)
            response = await answered(scope, self._models, self._response(stack, request))
            unknown = scope.pop(UNKNOWN, ())
            await response(scope, receive, naming(unknown, send) if unknown else send)

    def _decoded(self, raw: bytes, kind: type[Struct], scope: Scope) -> Any:
        body = as_object(raw)
        within = {"options": ollama.OllamaOptions} if issubclass(kind, ollama.OllamaRequest) else {}
        if unknown := unknown_fields(body, kind, within):
            scope[UNKNOWN] = unknown
            self._logged.log(scope["path"], unknown, kind)
        return converted(body, kind)

    async def _response(self, stack: contextlib.AsyncExitStack, request: Request) -> Any:
        name = request.query_params.get("model")
        if (kind := self._kind) is not None:
            limits = self._models.options.limits
            body = await limited_body(limits, request, lambda raw: self._decoded(raw, kind, request.scope))
            request.scope[DECODED] = body
            name = getattr(body, "model", None) or getattr(body, "name", None) or name
        autoload = request.query_params.get("autoload")
        if autoload not in (None, *SWITCH):
            raise wrong_field("autoload", f"wanted {', '.join(SWITCH)}; got {autoload!r:.40}")
        wanted = None if autoload is None else SWITCH[autoload]
        opening = stack.enter_async_context(self._models.use(name, wanted))
        if (conversation := request.headers.get("x-conversation-id")) is not None:
            whose = request.scope.get("graphml.key"), conversation
            opening = self._models.shared.streams.opened(whose, opening)
        service = await opening
        plain = str(name or "").removesuffix(":latest")  # the tag that ollama's clients add
        ASKED_NAME.set(str(name) if plain in self._models.names_of(service.name) else "")
        return await self._handler(service, request)


class ServerEndpoint:
    """The same of a handler of the server as a whole."""

    def __init__(self, models: ServedModels, handler: ServerHandler) -> None:
        self._models, self._handler = models, handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        work = self._handler(self._models, Request(scope, receive))
        response = await answered(scope, self._models, work)
        await response(scope, receive, send)


async def answered(scope: Scope, models: ServedModels, work: Awaitable[Any]) -> Any:
    """What some work answers, or its error as a response."""
    try:
        try:
            return await work
        except BaseException:
            cancel_all(scope.get("graphml.generations", ()))  # which nobody reads
            raise
    except ClientDisconnect:
        return gone()
    except Exception as error:
        known = as_api_error(error)
        if known.status >= 500 and not isinstance(error, ApiError):
            id = scope.get("graphml.request_id", "-")
            LOG.exception("request %s: %s %s", id, scope["method"], scope["path"])
        for service in list(models.shared.services):
            known.message = service.without_folders(known.message)
        _forget_frames(error)
        return error_response(known, style_of(scope["path"]))


def _forget_frames(error: BaseException | None) -> None:
    """Let go of the frames that an error came through, with a request's body: they refer to it, too."""
    while error is not None:
        error.__traceback__ = None
        error = error.__context__


def server_app(
    models: ServedModels, listeners: Sequence[Ended] = (), mcp: McpServers | None = None,
    middleware: Sequence[Middleware] | None = None,
) -> Starlette:  # fmt: skip
    """The application that serves models.

    listeners: who else wants to know of requests that have ended. mcp: servers whose tools the page may call.
    middleware: None: log and access control; else what stands for them, where another process has these.
    """
    options = models.options
    whole = [*SERVER_HANDLERS, ("GET", "/openapi.json", openapi)]
    if options.page and mcp is not None:
        whole += McpCalls(mcp).handlers()
    of_models = [*HANDLERS, *(engine_handlers() if options.page else ())]
    routes = [
        Route(path, ServerEndpoint(models, handler), methods=[method])
        for method, paths, handler in whole
        for path in paths.split()
    ]
    routes += [
        Route(path, Endpoint(models, handler), methods=[method])
        for method, paths, handler in of_models
        for path in paths.split()
    ]
    if options.page:
        routes += page_routes()
    return Starlette(
        routes=routes,
        middleware=guards(options, models.shared.keys, listeners) if middleware is None else middleware,
        exception_handlers={HTTPException: _not_found},
    )


def guards(options: ServerOptions, keys: ApiKeys, listeners: Sequence[Ended]) -> list[Middleware]:
    """What every request of a client passes: the log of requests, and access control."""
    lines = [print_line] if options.log_requests else []
    return [
        Middleware(RequestLog, listeners=[*listeners, *lines]),
        Middleware(AccessControl, options=options, keys=keys),
    ]


def engine_handlers() -> list[tuple[str, str, Handler]]:
    """What the page's engine view asks for, of a model."""

    async def view(service: Service, request: Request) -> Any:
        engine = service.access.engine
        if engine is None:
            raise ApiError(404, "File Not Found")
        if not service.views:
            names, model = (service.name, service.model.executor.backend.name), service.model
            service.views.update(EngineView(engine, *names, lambda: graph_page(model)).handlers())
        return await service.views[request.url.path.rsplit("/")[-1]](request)

    return [("GET", f"/engine/{name}", view) for name in EngineView.NAMES]


def graph_page(model: Model) -> str:
    """The page that shows the graph of a step of one token."""
    return render(describe_model(model.executor, 1))


async def _not_found(request: Request, error: Exception) -> Any:
    assert isinstance(error, HTTPException)
    path, routes = request.scope["path"], request.app.routes
    matching = [route for route in routes if route.path_regex.match(path)]
    methods = ", ".join(sorted({name for route in matching for name in route.methods}))
    texts = {
        404: f"File Not Found{OTHER_PATHS.get(path) or _nearest(path, [route.path for route in routes])}",
        405: f"this path does not answer that method; it answers {methods}",
    }
    known = ApiError(error.status_code, texts.get(error.status_code, error.detail))
    response = error_response(known, style_of(path))
    if error.status_code == 405:
        response.headers["Allow"] = methods
    return response


OTHER_PATHS: dict[str, str] = {
    **dict.fromkeys(("/docs", "/redoc", "/swagger"), ": `GET /openapi.json` is the OpenAPI document"),
    **dict.fromkeys(("/v1", "/v1/"), ": the base of OpenAI's clients; chats are at /v1/chat/completions"),
    **dict.fromkeys(("/api", "/api/"), ": ollama's clients find /api/chat; OpenAI's the base /v1"),
    **dict.fromkeys(("/info", "/status"), ": `GET /props` describes the server, `GET /v1/models` its models"),
    **dict.fromkeys(("/generate", "/generate_stream", "/v1/generate"), ": /completion continues a `prompt`"),
}
"""Paths of other servers -> what to say of them."""


def _nearest(path: str, known: list[str]) -> str:
    """A path and the nearest one that there is, to say to a client; of odd characters nothing is said."""
    if not re.fullmatch(r"[\w/.~-]+", path[:MOST_SHOWN], re.ASCII):
        return ""
    near = similar(path[:MOST_SHOWN], known, 1, 0.8)
    return f": {path[:MOST_SHOWN]}" + (f". Did you mean {near[0]}?" if near else "")
