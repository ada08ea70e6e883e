"""`/tokenize` and `/detokenize`, as llama-server has them.

Knows texts and ids.
"""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from graphml.server.api_errors import wrong_field
from graphml.server.json_response import json_response
from graphml.server.prompts import ids_of
from graphml.server.request_fields import Detokenize, Tokenize, decoded
from graphml.server.service import Service


async def tokenize(service: Service, request: Request) -> Response:
    """`POST /tokenize`."""
    given = decoded(await request.body(), Tokenize)
    return json_response({"tokens": await service.access.in_thread(_tokens, service, given)})


def _tokens(service: Service, given: Tokenize) -> list[Any]:
    tokenizer = service.tokenizer
    if isinstance(given.content, str):
        ids = tokenizer.encode(given.content, given.add_special, given.parse_special)
    else:
        ids = ids_of(given.content, tokenizer, "content", given.parse_special) if given.content else []
    if not given.with_pieces:
        return list(ids)
    return [{"id": one, "piece": _piece(tokenizer.piece_bytes(one))} for one in ids]


def _piece(raw: bytes) -> str | list[int]:
    """The text of a token; its bytes where they are no whole characters."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return list(raw)


async def detokenize(service: Service, request: Request) -> Response:
    """`POST /detokenize`."""
    given = decoded(await request.body(), Detokenize)
    n_vocab = service.tokenizer.n_vocab
    if any(not 0 <= one < n_vocab for one in given.tokens):
        raise wrong_field("tokens", f"wanted ids from 0 to {n_vocab - 1}")
    return json_response({"content": await service.access.in_thread(service.tokenizer.decode, given.tokens)})
