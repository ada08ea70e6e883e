"""Errors as clients see them: a status, a type and a message, in the shape of a protocol.

Knows statuses and graphml's errors; nothing of requests. A message never names a file or a line of code.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any, Literal, TypeAlias

from graphml.errors import BusyError, GraphmlError, TemplateError, TokenizerError, UsageError

TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "invalid_request_error",
    414: "invalid_request_error",
    429: "rate_limit_error",
    500: "server_error",
    501: "not_supported_error",
    503: "unavailable_error",
}
ANTHROPIC_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error",
                   413: "request_too_large", 429: "rate_limit_error", 503: "overloaded_error"}  # fmt: skip
MODEL_NOT_FOUND = "model_not_found"
"""The one `code` that is OpenAI's word and not the status, as llama-server's are."""

_SHOWN = 8  # names of models in a message
Style: TypeAlias = Literal["openai", "anthropic", "ollama"]
"""Whose shape an error has, and whose form a stream."""


def style_of(path: str) -> Style:
    """The style of an endpoint's errors."""
    if path.startswith("/v1/messages"):
        return "anthropic"
    return "ollama" if path.startswith("/api/") else "openai"


class ApiError(Exception):
    """What a client has to know of a request that is not answered.

    status: of HTTP; kind: the type, by default that of the status; more: further fields of the error.
    retry_after: seconds until another try makes sense, told with 429 and 503.
    """

    def __init__(
        self, status: int, message: str, kind: str | None = None, *, retry_after: float = 1, **more: Any
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.more = status, message, more
        self.retry_after = retry_after
        self.kind = kind or TYPES.get(status, "server_error")

    @property
    def headers(self) -> dict[str, str]:
        """Headers that go with it."""
        return {"Retry-After": str(math.ceil(self.retry_after))} if self.status in (429, 503) else {}

    def body(self, style: Style = "openai") -> dict[str, Any]:
        """The body of the response."""
        if style == "ollama":
            return {"error": self.message}
        if style == "anthropic":
            kind = ANTHROPIC_TYPES.get(self.status)
            kind = kind or ("invalid_request_error" if self.status < 500 else "api_error")
            return {"type": "error", "error": {"type": kind, "message": self.message}}
        return {"error": {"code": self.status, "message": self.message, "type": self.kind, **self.more}}


def wrong_field(name: str, message: str) -> ApiError:
    """A field of a request that is wrong; the message and `param` name it, as OpenAI's do."""
    return ApiError(400, f"Field '{name}': {message}", param=name)


def unknown_model(name: str, known: Collection[str]) -> ApiError:
    """404 for an unknown model, in OpenAI's form; the message names up to `_SHOWN` known ones."""
    shown = ", ".join([*sorted(known)[:_SHOWN], *(["..."] if len(known) > _SHOWN else [])])
    there = f"there are {shown}" if shown else "there is none"
    return ApiError(
        404, f"Field 'model': there is no model {name!r:.200}; {there}; `GET /v1/models` lists them",
        TYPES[400], param="model", code=MODEL_NOT_FOUND,
    )  # fmt: skip


def as_api_error(error: BaseException) -> ApiError:
    """Any error of a request as its client sees it."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, UsageError | TokenizerError | TemplateError):
        return ApiError(400, str(error))
    if isinstance(error, BusyError):
        return ApiError(429, str(error))
    if isinstance(error, GraphmlError):
        return ApiError(500, f"the model failed: {type(error).__name__}")
    return ApiError(500, f"internal error: {type(error).__name__}")
