"""Responses with JSON. Infinite numbers and those that are none become null.

Knows JSON; nothing of what is in it.
"""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from graphml.server.responses.api_errors import ApiError, Style
from graphml.server.responses.event_stream import encode


def json_response(data: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A response with that data."""
    return Response(encode(data), status, headers, "application/json; charset=utf-8")


def error_response(error: ApiError, style: Style = "openai") -> Response:
    """A response that says what went wrong."""
    return json_response(error.body(style), error.status, error.headers)


def gone() -> Response:
    """What nobody will read: the client has left."""
    return Response(status_code=499)
