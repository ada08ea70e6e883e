"""`/mcp/tools` and `/mcp/call`: tools of MCP servers for this server's own page, where `--mcp` offers them.

The page asks a person before each call. Another site's page can neither list nor call: browsers say where a
request comes from. Knows requests and who may make them; nothing of the protocol of MCP.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec import Struct
from starlette.requests import Request

from graphml.api.mcp_servers import McpServers
from graphml.server.access.access_control import page_of
from graphml.server.engine.served_models import ServedModels
from graphml.server.protocols.request_body import limited_body
from graphml.server.requests.request_fields import decoded
from graphml.server.responses.api_errors import ApiError, wrong_field
from graphml.server.responses.event_stream import unless_left
from graphml.server.responses.json_response import gone, json_response


class McpCall(Struct, kw_only=True):
    """`/mcp/call`: the tool's name as it is offered, and its arguments."""

    name: str
    arguments: dict[str, Any]


class McpCalls:
    """Answers the page's requests for the tools of these servers."""

    def __init__(self, servers: McpServers) -> None:
        self._servers = servers
        self._tools = {tool.name: tool.as_openai() for tool in servers.tools}

    def handlers(self) -> tuple[tuple[str, str, Callable[[ServedModels, Request], Awaitable[Any]]], ...]:
        """Method, path and handler of each endpoint."""
        return ("GET", "/mcp/tools", self._listed), ("POST", "/mcp/call", self._call)

    async def _listed(self, models: ServedModels, request: Request) -> Any:
        """`GET /mcp/tools`: in OpenAI's form; none for a key that may not call them."""
        _check_origin(request)
        admin = models.shared.is_admin(request.scope.get("graphml.key"))
        return json_response({"tools": list(self._tools.values()) if admin else []})

    async def _call(self, models: ServedModels, request: Request) -> Any:
        """`POST /mcp/call`: the result as text. A page that leaves cancels the call."""
        _check_origin(request)
        if not models.shared.is_admin(request.scope.get("graphml.key")):
            raise ApiError(403, "this key may not call tools")
        body = await limited_body(models.options.limits, request, lambda raw: decoded(raw, McpCall))
        if body.name not in self._tools:
            raise wrong_field("name", f"there is no tool {body.name!r:.80}")
        future = self._servers.start(body.name, body.arguments)
        text = await unless_left(request.receive, asyncio.wrap_future(future), lambda: None)
        return gone() if text is None else json_response({"content": text})


def _check_origin(request: Request) -> None:
    """ApiError 403 unless the request is this server's page's own, whatever pages may ask for answers."""
    page = page_of(request.headers)
    if not (page == "own" or (page == "unknown" and request.method == "GET")):
        raise ApiError(403, "tools are for this server's own page")
