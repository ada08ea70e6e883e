"""A function of the user's own, which may change all logits."""

from __future__ import annotations

import numpy as np

from graphml.errors import UsageError
from graphml.sampling.candidates.candidates import Candidates
from graphml.sampling.candidates.filter import ChainEntry, Filter, Needs
from graphml.sampling.candidates.moment import Moment
from graphml.sampling.settings.params import SamplingParams


def _apply(params: SamplingParams, candidates: Candidates, moment: Moment) -> Candidates:
    function = params.function
    assert function is not None
    replaced = function(candidates.ids.copy(), candidates.logits.copy(), tuple(moment.history))
    wanted = (
        f"function: wanted logits, float32 [{len(candidates)}] without NaN or +inf, back from {function!r}"
    )
    try:
        logits = np.array(replaced, np.float32)
    except (TypeError, ValueError):
        raise UsageError(f"{wanted}; got {type(replaced).__name__}") from None
    if logits.shape != candidates.logits.shape:
        raise UsageError(f"{wanted}; got shape {list(logits.shape)}")
    if not (logits < np.inf).all():
        at = int(np.flatnonzero(~(logits < np.inf))[0])
        raise UsageError(f"{wanted}; got {logits[at]} for token {candidates.ids[at]}")
    return candidates.with_logits(logits, is_sorted=False)


FILTER = Filter(
    name="own_function",
    params_read=("function",),
    is_on=lambda params: params.function is not None,
    apply=_apply,
    needs=Needs.HISTORY,
    place=40,
    adjusts=True,
    with_mirostat=True,
    entries=(ChainEntry("function", {"function": "function"}),),
)
