"""Forced tokens: what a structure leaves no choice about is appended at once, and computed as one chunk.

Used by sessions and engines behind each sampled token. Knows matchers and params; nothing of steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from graphml.sampling.settings.params import LLAMA_CPP, SamplingParams
from graphml.sampling.structured.matcher import Matcher

MOST: Final = 64
"""Tokens at a time: rows that others in a step wait for."""


def forced_tokens(
    matcher: Matcher | None, params: SamplingParams, generated: Sequence[int], n: int, room: int
) -> list[int]:
    """The tokens that must follow the last `n` ids of `generated`, at most `room`; the matcher accepts them.

    None with rng="llama.cpp", which samples them one by one, as llama.cpp does, nor where each token has its
    log-probabilities. UsageError as of `Matcher.catch_up`.
    """
    if matcher is None or params.rng == LLAMA_CPP or params.logprobs is not None or room < 1:
        return []
    matcher.catch_up(generated, n)
    return matcher.forced(min(room, MOST))
