"""The page at `/`: what is served here, in one file without scripts.

Knows the model's name.
"""

from __future__ import annotations

from html import escape

from starlette.requests import Request
from starlette.responses import Response

from graphml.server.api_errors import ApiError
from graphml.server.json_response import json_response
from graphml.server.service import Service

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
}


async def page(service: Service, request: Request) -> Response:
    """`GET /`."""
    if not service.options.page:
        raise ApiError(404, "File Not Found")
    if request.url.path == "/manifest.webmanifest":
        return json_response({"name": "graphml", "start_url": "/"})
    if request.url.path == "/_app/version.json":
        return json_response({"version": "1"})
    if request.url.path == "/sw.js":
        return Response("", 200, HEADERS, "text/javascript")
    text = (
        "<!doctype html><html lang=en><meta charset=utf-8><title>graphml</title>"
        "<meta name=viewport content='width=device-width'><style>body{margin:3em}</style>"
        f"<h1>graphml</h1><p>{escape(service.name)} is served here. Clients of OpenAI's protocol: base URL "
        "<code>/v1</code>; of Anthropic's: <code>/</code>.</p></html>"
    )
    return Response(text, 200, HEADERS, "text/html; charset=utf-8")
