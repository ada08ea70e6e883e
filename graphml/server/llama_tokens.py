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
from graphml.server.request_body import body_of
from graphml.server.request_fields import Detokenize, Tokenize
from graphml.server.service import Service


async def tokenize(service: Service, request: Request) -> Response:
    """`POST /tokenize`."""
    given = await body_of(service, request, Tokenize)
    texts = [given.content] if isinstance(given.content, str) else given.content
    count = sum(len(one) if isinstance(one, str) else 1 for one in texts)
    if count > (most := service.options.limits.tokenized_chars):
        raise wrong_field("content", f"at most {most} characters are wanted, got {count}")
    return json_response({"tokens": await service.access.in_thread(_tokens, service, given)})


def _tokens(service: Service, given: Tokenize) -> list[Any]:
    tokenizer = service.tokenizer
    if isinstance(given.content, str):
        ids = tokenizer.encode(given.content, given.add_special, given.parse_special)
    else:
        most = service.options.limits.tokenized_chars  # which counts here, whatever the context
        ids = ids_of(given.content, tokenizer, most, "content", given.parse_special) if given.content else []
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
    given = await body_of(service, request, Detokenize)
    n_vocab, most = service.tokenizer.n_vocab, service.options.limits.detokenized
    if len(given.tokens) > most:
        raise wrong_field("tokens", f"at most {most} are wanted, got {len(given.tokens)}")
    if any(not 0 <= one < n_vocab for one in given.tokens):
        raise wrong_field("tokens", f"wanted ids from 0 to {n_vocab - 1}")
    return json_response({"content": await service.access.in_thread(service.tokenizer.decode, given.tokens)})
