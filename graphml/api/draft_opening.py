"""Whether one open model can draft for another, and whether an id is the same token in both.

Knows models and vocabularies; nothing of steps.
"""

from __future__ import annotations

from graphml.api.draft_model import DraftModel
from graphml.api.model import Model
from graphml.errors import UsageError

MOST_PADDING = 128
"""Tokens that one of two equal vocabularies may have more than the other, as llama.cpp allows."""


def draft_model_of(model: Model, draft: Model) -> DraftModel:
    """Drafts by `draft`, which is closed with it; UsageError where it cannot draft for `model`."""
    if not draft.executor.architecture.causal or draft.executor.encodes:
        raise UsageError(
            f"draft_model: wanted a model that continues a text; {draft.path} is of {draft.arch}, which "
            "does not"
        )
    own, other = model.tokenizer, draft.tokenizer
    translate = None
    if not same_tokens(model, draft):
        if own is None or other is None:
            raise UsageError(
                f"draft_model: wanted the {model.n_vocab} tokens of {model.path}, or a tokenizer in "
                f"both; {draft.path} has {draft.n_vocab} tokens"
            )
        translate = own, other
    n_ctx = min(model.n_ctx, draft.n_ctx)
    return DraftModel(lambda: draft.session(n_ctx, prefix_cache=False), draft.close, model.n_vocab, translate)


def same_tokens(model: Model, draft: Model) -> bool:
    """Whether each id that both know is the same token."""
    if abs(model.n_vocab - draft.n_vocab) > MOST_PADDING:
        return False
    if model.tokenizer is None or draft.tokenizer is None:
        return model.tokenizer is draft.tokenizer
    count = min(model.tokenizer.n_vocab, draft.tokenizer.n_vocab)
    ends = sorted(model.tokenizer.end_tokens), sorted(draft.tokenizer.end_tokens)
    pieces = all(model.tokenizer.piece_bytes(i) == draft.tokenizer.piece_bytes(i) for i in range(count))
    return ends[0] == ends[1] and pieces
