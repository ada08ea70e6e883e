"""Methods of `Model` for ways of decoding besides one sampled text.

Knows which file does what; does none of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, cast

from graphml.api.beam_search import Beam, beam_search
from graphml.api.decodes import Decodes
from graphml.api.filling import MAX_TOKENS, Files, fill_ids, filled
from graphml.api.healing import HealedPrompt, healed
from graphml.api.request_handle import SCORES
from graphml.api.token_stream import Result
from graphml.api.tokens import Ids, checked_ids
from graphml.errors import TokenizerError, UsageError
from graphml.sampling import SamplingParams, checked_params


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
        return filled(cast("Decodes", self), ids, params, max_tokens, n_ctx, seed)

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
        return fill_ids(cast("Decodes", self), prefix, suffix, extra, order, max_tokens, n_ctx)

    def heal(self, prompt: str | Ids, params: SamplingParams | None = None) -> HealedPrompt:
        """A prompt without its last token, and params by which the text begins with what that spelled.

        For a session or `Engine.submit`: what is generated begins with `HealedPrompt.text`. prompt: a text,
        or ids. UsageError for params that have a grammar or the like already.
        """
        model, params = cast("Decodes", self), checked_params(params)
        ids = model.encode(prompt) if isinstance(prompt, str) else prompt
        checked = checked_ids(ids, model.n_vocab, some=True).tolist()
        if model.tokenizer is None:
            raise TokenizerError(f"{model.path}: heal: wanted a model with a vocabulary; it has none")
        return healed(model.tokenizer, checked, params)

    def beam_search(
        self,
        prompt: str | Ids,
        beams: int = 4,
        max_tokens: int = MAX_TOKENS,
        *,
        n_best: int = 1,
        length_penalty: float = 1.0,
        early_stopping: bool | str = False,
        stop_tokens: Iterable[int] = (),
    ) -> list[Beam]:
        """The `n_best` most likely continuations among `beams` that go on together, the best first.

        They are compared by the sum of log-probabilities / length ** length_penalty: 0 is the sum, 1 the
        mean; an end token counts. early_stopping: it ends when as many as `beams` have ended; False: and
        when none of those that go on is better now; "never": when none can become better. stop_tokens end a
        text besides those of the vocabulary. UsageError for other arguments, a prompt without room, and
        models with windows (unless opened with swa_full), with an encoder, or that do not continue texts.
        """
        how = n_best, length_penalty, early_stopping, stop_tokens
        return beam_search(cast("Decodes", self), prompt, beams, max_tokens, *how)

    def guided(
        self,
        prompt: str | Ids,
        negative_prompt: str | Ids | None = None,
        guidance_scale: float = 1.5,
        params: SamplingParams | None = None,
        max_tokens: int | None = None,
        seed: int | None = None,
    ) -> Result:
        """Continue a prompt with classifier-free guidance, away from what follows a negative prompt.

        Logits are negative + guidance_scale * (prompt - negative), of log-probabilities; negative_prompt
        None: the prompt's last token alone, so that the prompt counts more. Both sequences share their steps.
        In an engine of its own; `Engine.submit` has the same arguments. UsageError for a model with an
        encoder, and a scale that is not from 0 to 100.
        """
        with cast("Decodes", self).engine() as engine:
            how: Any = {"guidance_scale": guidance_scale, "negative_prompt": negative_prompt}
            return engine.submit(prompt, params, max_tokens, seed, **how).result()

    def best_of(
        self,
        prompt: str | Ids,
        n: int,
        params: SamplingParams | None = None,
        max_tokens: int | None = None,
        seed: int | None = None,
        by: str = "mean",
    ) -> Result:
        """The most likely of `n` sampled continuations, by the mean or the sum of log-probabilities.

        In an engine of its own; `Engine.submit(..., n=n).best(by)` does it in another. params: without a
        temperature all are the same.
        """
        if by not in SCORES:
            raise UsageError(f"by: wanted one of {', '.join(SCORES)}; got {by!r}")
        params = checked_params(params)
        if params.logprobs is None:
            params = replace(params, logprobs=0)
        with cast("Decodes", self).engine() as engine:
            return engine.submit(prompt, params, max_tokens, seed, n).best(by)
