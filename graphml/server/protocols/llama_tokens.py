"""`/tokenize` and `/detokenize`, as llama-server has them.

Knows texts and ids.
"""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from graphml.server.engine.service import Service
from graphml.server.protocols.request_body import body_of
from graphml.server.requests.prompts import ids_of
from graphml.server.requests.request_fields import Detokenize, Tokenize
from graphml.server.responses.api_errors import wrong_field
from graphml.server.responses.json_response import json_response


async def tokenize(service: Service, request: Request) -> Response:
    """`POST /tokenize`."""
    body = await body_of(service, request, Tokenize)
    texts = [body.content] if isinstance(body.content, str) else body.content
    count = sum(len(part) if isinstance(part, str) else 1 for part in texts)
    if count > (most := service.options.limits.tokenized_chars):
        raise wrong_field("content", f"at most {most} characters are wanted, got {count}")
    return json_response({"tokens": await service.access.in_thread(_tokens, service, body)})


def _tokens(service: Service, body: Tokenize) -> list[Any]:
    tokenizer = service.tokenizer
    if isinstance(body.content, str):
        ids = tokenizer.encode(body.content, body.add_special, body.parse_special)
    else:
        most = service.options.limits.tokenized_chars  # which counts here, whatever the context
        ids = ids_of(body.content, tokenizer, most, "content", body.parse_special) if body.content else []
    if not body.with_pieces:
        return list(ids)
    return [{"id": token, "piece": _piece(tokenizer.piece_bytes(token))} for token in ids]


def _piece(raw: bytes) -> str | list[int]:
    """The text of a token; its bytes where they are no whole characters."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return list(raw)


async def detokenize(service: Service, request: Request) -> Response:
    """`POST /detokenize`."""
    body = await body_of(service, request, Detokenize)
    n_vocab, most = service.tokenizer.n_vocab, service.options.limits.detokenized
    if len(body.tokens) > most:
        raise wrong_field("tokens", f"at most {most} are wanted, got {len(body.tokens)}")
    if any(not 0 <= token < n_vocab for token in body.tokens):
        raise wrong_field("tokens", f"wanted ids from 0 to {n_vocab - 1}")
    return json_response({"content": await service.access.in_thread(service.tokenizer.decode, body.tokens)})
