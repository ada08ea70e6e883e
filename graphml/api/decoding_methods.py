"""Methods of `Model` for ways of decoding besides one sampled text.

Knows which file does what; does none of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from graphml.api.filling import MAX_TOKENS, Files, fill_ids, filled
from graphml.sampling import SamplingParams

if TYPE_CHECKING:
    from graphml.api.model import Model


class DecodingMethods:
    """A part of `Model` in a file of its own."""

    def fill(
        self,
        prefix: str,
        suffix: str = "",
        params: SamplingParams | None = None,
        max_tokens: int | None = MAX_TOKENS,
        *,
        extra: Files = (),
        order: str = "psm",
        n_ctx: int | None = None,
        seed: int | None = None,
    ) -> str:
        """The text between a prefix and a suffix, by the fill-in-the-middle tokens of the vocabulary.

        extra: (name, text) of other files, the nearest last; order: `psm` (prefix first) or `spm` (suffix
        first), as the model was trained. What has no room in the context is left out: of the prefix its
        beginning, of the suffix its end, of the files the first ones. UsageError for a model without the
        tokens, which names those it lacks.
        """
        ids = self.fill_ids(prefix, suffix, extra, order, max_tokens, n_ctx)
        return filled(cast("Model", self), ids, params, max_tokens, n_ctx, seed)

    def fill_ids(
        self,
        prefix: str,
        suffix: str = "",
        extra: Files = (),
        order: str = "psm",
        max_tokens: int | None = MAX_TOKENS,
        n_ctx: int | None = None,
    ) -> list[int]:
        """The ids that `fill` continues, for a session or `Engine.submit`; errors as of `fill`."""
        return fill_ids(cast("Model", self), prefix, suffix, extra, order, max_tokens, n_ctx)
