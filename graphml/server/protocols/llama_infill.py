"""llama-server's `/infill`: text between a prefix and a suffix, for models that fill in the middle.

Knows that protocol.
"""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from graphml.server.access.text_limits import check_chars
from graphml.server.engine.service import Service
from graphml.server.protocols.llama_completion import answered
from graphml.server.protocols.request_body import body_of
from graphml.server.requests.request_fields import Infill
from graphml.server.requests.sampling_settings import RequestSettings
from graphml.server.responses.api_errors import wrong_field
from graphml.server.responses.event_stream import EventStream


async def infill(service: Service, request: Request) -> Response | EventStream:
    """`POST /infill`. `prompt` is what the middle begins with."""
    body = await body_of(service, request, Infill)
    extra = [_file(file) for file in body.input_extra or []]

    for name, text in (("input_prefix", body.input_prefix), ("input_suffix", body.input_suffix),
                       ("prompt", body.prompt), *(("input_extra", text) for _, text in extra)):  # fmt: skip
        check_chars(text, service.options.limits.tokenized_chars, name)

    def prompts() -> tuple[list[list[int]], RequestSettings]:
        settings, model = service.settings(body), service.model
        ids = model.fill_ids(
            body.input_prefix, body.input_suffix, extra, max_tokens=settings.max_tokens,
            n_ctx=service.access.n_ctx,
        )  # fmt: skip
        if body.prompt:
            ids = [*ids, *model.encode(body.prompt, add_special=False)]
        return [ids], settings

    return await answered(
        service, request, body, await service.begin(request, body, prompts), body.response_fields
    )


def _file(file: Any) -> tuple[str, str]:
    name, text = (file.get("filename", "tmp"), file.get("text")) if isinstance(file, dict) else (None, None)
    if not isinstance(name, str) or not isinstance(text, str):
        raise wrong_field("input_extra", "wanted objects with a text, and a filename as text")
    return name, text
