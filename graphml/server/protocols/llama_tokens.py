"""`/tokenize` and `/detokenize`, as llama-server and vLLM have them, and vLLM's `/tokenizer_info`.

Knows texts and ids.
"""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from graphml.server.engine.service import Service
from graphml.server.protocols.request_body import body_of
from graphml.server.requests.prompts import ids_of
from graphml.server.requests.request_fields import Detokenize, Tokenize
from graphml.server.responses.api_errors import wrong_field
from graphml.server.responses.json_response import encoded_list, json_response
from graphml.text.chat_template import DEFAULT_NAME


async def tokenize(service: Service, request: Request) -> Response:
    """`POST /tokenize`."""
    body = await body_of(service, request, Tokenize)
    if body.prompt is not None:
        body.content, body.add_special = body.prompt, body.add_special_tokens
    texts = [body.content] if isinstance(body.content, str) else body.content
    count = sum(len(part) if isinstance(part, str) else 1 for part in texts)
    if count > (most := service.options.limits.tokenized_chars):
        raise wrong_field("content", f"at most {most} characters are wanted, got {count}")
    count, tokens = await service.access.in_thread(request, _tokens, service, body)
    about = {"count": count, "max_model_len": service.access.n_ctx}
    return json_response({"tokens": tokens, **({} if body.prompt is None else about)})


def _tokens(service: Service, body: Tokenize) -> tuple[int, msgspec.Raw]:
    """How many tokens a text has, and they as JSON."""
    tokenizer = service.tokenizer
    if isinstance(body.content, str):
        ids = tokenizer.encode(body.content, body.add_special, body.parse_special)
    else:
        most = service.options.limits.tokenized_chars  # which counts here, whatever the context
        ids = ids_of(body.content, tokenizer, most, "content", body.parse_special) if body.content else []
    if not body.with_pieces:
        return len(ids), encoded_list(ids, int)

    def shown(token: int) -> dict[str, Any]:
        return {"id": token, "piece": _piece(tokenizer.piece_bytes(token))}

    return len(ids), encoded_list(ids, shown)


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
    text = await service.access.in_thread(request, service.tokenizer.decode, body.tokens)
    return json_response({"content": text, "prompt": text})  # the second is vLLM's name


async def tokenizer_info(service: Service, request: Request) -> Response:
    """`GET /tokenizer_info`: what lm-evaluation-harness asks of a tokenizer."""
    tokenizer = service.tokenizer
    ids = {"bos_token": tokenizer.bos, "eos_token": tokenizer.eos}
    tokens = {name: None if id is None else tokenizer.piece(id) for name, id in ids.items()}
    return json_response({
        "tokenizer_class": tokenizer.kind, "vocab_size": tokenizer.n_vocab, **tokens,
        "model_max_length": service.access.n_ctx, "chat_template": service.templates[DEFAULT_NAME].source,
    })  # fmt: skip
