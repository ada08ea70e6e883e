"""The token that follows, sampled from what is known of the logits.

Knows samplers and their errors; nothing of sessions.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from graphml.errors import UsageError, WeightsError
from graphml.sampling import NextLogits, PeekableRandom, SamplingParams, flaw_of
from graphml.sampling.candidates.logprobs import TokenLogprobs
from graphml.sampling.structured.matcher import Matcher


def next_token(
    known: NextLogits,
    params: SamplingParams,
    history: Sequence[int],
    numbers: PeekableRandom,
    path: Path,
    matcher: Matcher | None = None,
    scores: list[TokenLogprobs] | None = None,
) -> int | None:
    """Sample a token; None where what is known is not enough. WeightsError where logits are no numbers.

    matcher: of what the text must follow, behind the tokens that were sampled. scores: gets the token's
    log-probabilities, where the params ask for them.
    """
    try:
        if scores is not None and params.logprobs is not None:
            row = None if matcher is None else known.whole_row()
            seen = known if matcher is None or row is None else matcher.masked(row)
            return seen.sample_scored(params, history, numbers, known, scores)
        if matcher is None:
            return known.sample(params, history, numbers)
        row = known.whole_row()
        return None if row is None else matcher.masked(row).sample(params, history, numbers)
    except UsageError:
        flaw = None if known.row is None else flaw_of(known.row)
        if flaw is None:
            raise
    raise WeightsError(no_numbers(path, flaw))


def no_numbers(path: Path, flaw: str) -> str:
    """What to say of a model whose logits have a flaw, as of `flaw_of`."""
    return (
        f"{path}: the model's logits are no numbers: {flaw}. Its tensors are damaged or not those of this "
        "architecture, or numbers leave the range of the cache's dtype (kv); `graphml compare` shows where "
        "they begin"
    )
