"""Infill: the text between a prefix and a suffix, by a model that was trained to fill gaps.

Knows how a prompt and a generation fit together; the prompt's layout is `graphml.text.infill`'s.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphml.api.answer_text import AnswerText
from graphml.api.decodes import Decodes
from graphml.errors import TokenizerError, UsageError
from graphml.options.argument_checks import count_or_none
from graphml.sampling import SamplingParams
from graphml.text.infill import infill_ids

MAX_TOKENS = 128
Files = Sequence[tuple[str, str]]


def fill_ids(
    model: Decodes,
    prefix: str,
    suffix: str,
    extra: Files = (),
    order: str = "psm",
    max_tokens: int | None = None,
    n_ctx: int | None = None,
) -> list[int]:
    """The prompt's ids, which leave room for `max_tokens` (None: MAX_TOKENS, at most half) in `n_ctx`."""
    if model.tokenizer is None:
        raise TokenizerError(f"{model.path}: fill: wanted a model with a vocabulary; it has none")
    size = model.n_ctx if n_ctx is None else n_ctx
    wanted = count_or_none("max_tokens", max_tokens)
    room = size - min(MAX_TOKENS if wanted is None else wanted, size // 2)
    try:
        return infill_ids(model.tokenizer, prefix, suffix, extra, order, room)
    except UsageError as error:
        raise UsageError(f"{model.path}: {error}") from None


def filled(model: Decodes, ids: list[int], params: SamplingParams | None, max_tokens: int | None,
           n_ctx: int | None, seed: int | None) -> AnswerText:  # fmt: skip
    """What a model continues the ids of an infill prompt with."""
    with model.session(n_ctx, seed) as session:
        text = "".join(token.piece for token in session.generate(ids, params, max_tokens))
        return AnswerText(text, session.stop_reason)
