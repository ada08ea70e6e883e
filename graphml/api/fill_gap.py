"""`graphml.fill`: the text between two others, by a model that is opened for it or that is open.

Knows how a model is opened; what is done with it is its own.
"""

from __future__ import annotations

import os

from graphml.api.answer_text import AnswerText
from graphml.api.filling import MAX_TOKENS, Files
from graphml.api.load_model import load
from graphml.api.model import Model
from graphml.sampling import SamplingParams


def fill(
    prefix: str,
    suffix: str = "",
    params: SamplingParams | None = None,
    max_tokens: int | None = MAX_TOKENS,
    *,
    model: Model | str | os.PathLike[str],
    extra: Files = (),
    order: str = "psm",
    n_ctx: int | None = None,
    seed: int | None = None,
) -> AnswerText:
    """The text between a prefix and a suffix; model: an open one, or what `graphml.load` opens.

    The other arguments and errors: `Model.fill`.
    """
    how = params, max_tokens
    if isinstance(model, Model):
        return model.fill(prefix, suffix, *how, extra=extra, order=order, n_ctx=n_ctx, seed=seed)
    with load(model) as opened:
        return opened.fill(prefix, suffix, *how, extra=extra, order=order, n_ctx=n_ctx, seed=seed)
