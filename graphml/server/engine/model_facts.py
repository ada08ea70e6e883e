"""What a server says of its model, as plain values: the listing of models and the properties.

They are kept while the model sleeps, whose file is closed then. Knows the model and the server's options.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from math import prod
from typing import Any, Protocol

from graphml.api.model import Model
from graphml.sampling.settings.sampling_defaults import ChosenSampling
from graphml.server.engine.engine_access import EngineAccess
from graphml.server.options.server_options import ServerOptions
from graphml.server.requests.request_fields import Sampling
from graphml.server.requests.sampling_settings import RequestSettings, described
from graphml.text.chat_template import ChatTemplate

VOCAB_TYPES = {"spm": 1, "bpe": 2, "wordpiece": 3, "unigram": 4}
"""llama.cpp's numbers of kinds of vocabularies; 0 for none, and for those that it does not have."""


class Served(Protocol):
    """A model that is served, and how: a `Service`."""

    model: Model
    options: ServerOptions
    access: EngineAccess
    sampling: ChosenSampling
    name: str
    began: int

    @property
    def templates(self) -> Mapping[str, ChatTemplate]:
        """Its chat templates by name."""

    def settings(self, sampling: Sampling) -> RequestSettings:
        """How a request wants its text sampled."""


def listing_of(service: Served) -> dict[str, Any]:
    """What `GET /v1/models` answers."""
    model = service.model
    options = service.options
    names = filter(None, dict.fromkeys([*(options.aliases or [service.name]), options.short_name]))
    tensors = model.executor.file.tensors.values()
    meta = {
        "vocab_type": 0 if model.tokenizer is None else VOCAB_TYPES.get(model.tokenizer.kind, 0),
        "n_vocab": model.n_vocab, "n_ctx": service.access.n_ctx, "n_ctx_train": model.n_ctx,
        "n_embd": getattr(model.config, "n_embd", 0),
        "n_params": sum(prod(tensor.shape) for tensor in tensors),
        "size": sum(tensor.n_bytes for tensor in tensors),
    }  # fmt: skip
    data = {
        "id": service.name, "aliases": list(names), "tags": list(options.tags), "object": "model",
        "created": service.began, "owned_by": "graphml", "meta": meta, **_as_anthropic(service),
    }  # fmt: skip
    shown = {"name": service.name, "model": service.name, "type": "model", "capabilities": ["completion"],
             "details": {"format": "gguf", "family": model.arch}}  # fmt: skip
    only = {"first_id": service.name, "last_id": service.name, "has_more": False}
    return {"object": "list", "data": [data], "models": [shown], **only}


def _as_anthropic(service: Served) -> dict[str, Any]:
    """What Anthropic's clients want to know of a model besides."""
    began = datetime.fromtimestamp(service.began, UTC).isoformat()
    return {"type": "model", "display_name": service.name, "created_at": began, "lifecycle": "active",
            "max_input_tokens": service.access.n_ctx}  # fmt: skip


def properties_of(service: Served, fingerprint: str) -> dict[str, Any]:
    """What `GET /props` answers, of a model that is awake."""
    model, options, tokenizer = service.model, service.options, service.model.tokenizer
    settings = (
        {} if tokenizer is None else described(service.settings(Sampling()), Sampling(), options.n_predict)
    )
    ends = (None, None) if tokenizer is None else (tokenizer.bos, tokenizer.eos)
    bos, eos = ("" if token is None or tokenizer is None else tokenizer.piece(token) for token in ends)
    return {
        "default_generation_settings": {"params": settings, "n_ctx": service.access.n_ctx},
        "sampling_sources": dict(service.sampling.sources),
        "total_slots": options.parallel, "model_alias": service.name, "model_path": model.path.name,
        "modalities": {"vision": False, "video": False, "audio": False},
        "endpoint_slots": options.slots, "endpoint_props": options.props, "endpoint_metrics": options.metrics,
        "endpoint_mcp": options.mcp is not None,
        "ui": options.page, "chat_template": "" if tokenizer is None else service.templates["default"].source,
        "has_chat_template": model.has_template,  # without one it is ChatML, which the model may not know
        "bos_token": bos, "eos_token": eos, "build_info": fingerprint, "is_sleeping": False,
        "deterministic": model.executor.deterministic,
    }  # fmt: skip
