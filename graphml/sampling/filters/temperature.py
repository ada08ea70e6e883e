"""Temperature: divides the logits by it; 0 is greedy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from graphml.sampling.candidates.candidates import Candidates
from graphml.sampling.candidates.filter import ChainEntry, Enough, Filter, NeedsTopK
from graphml.sampling.candidates.sorted_rows import SortedRows, column
from graphml.sampling.settings.params import SamplingParams

_LOWEST_ON_DEVICE = 1e-3
"""The lowest temperature at which devices sample: below it numbers leave float32's range."""


def temperature(candidates: Candidates, value: float) -> Candidates:
    """Divide the logits by the temperature; at 0 only the highest logit stays."""
    if value <= 0.0:
        best = int(np.argmax(candidates.logits))
        return Candidates(candidates.ids[best : best + 1], candidates.logits[best : best + 1], is_sorted=True)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        scaled = candidates.logits / np.float32(value)
    if not np.isfinite(scaled.max()):
        # So cold that the highest logit leaves float32's range: what is left is the greedy choice.
        return temperature(candidates, 0.0)
    return candidates.with_logits(scaled, candidates.is_sorted)


def _rows(params: Sequence[SamplingParams], rows: SortedRows) -> SortedRows:
    values = column([1.0 if row_params.greedy else row_params.temperature for row_params in params])
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        scaled = rows.logits / values
    cold = ~np.isfinite(scaled[:, 0])
    scaled[cold] = rows.logits[cold]
    one_left = cold | np.array([row_params.greedy for row_params in params])
    return rows.with_logits(scaled).heads(np.where(one_left, 1, rows.counts))


def masked_temperature(candidates: Candidates, value: float) -> Candidates:
    """The same as in llama.cpp: at 0 or below all but the highest logit become -inf; none is removed."""
    if value > 0.0:
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            scaled = candidates.logits / np.float32(value)
        if np.isfinite(scaled.max()):  # else so cold that it is the greedy choice
            return candidates.with_logits(scaled, candidates.is_sorted)
    logits = np.full_like(candidates.logits, -np.inf)
    highest = int(np.argmax(candidates.logits))
    logits[highest] = candidates.logits[highest]
    return candidates.with_logits(logits, candidates.is_sorted)


def _on_device(params: SamplingParams) -> Mapping[str, float] | None:
    if params.greedy:
        return {"top_k": 1.0, "number": 0.0}  # any number samples the only token
    if params.temperature < _LOWEST_ON_DEVICE:
        return None
    return {"inverse_temperature": 1.0 / params.temperature}


FILTER = Filter(
    name="temperature",
    params_read=("temperature", "dynatemp_range"),
    is_on=lambda params: params.greedy or (params.temperature != 1.0 and params.dynatemp_range == 0.0),
    apply=lambda params, candidates, _: temperature(candidates, params.temperature),
    needs=NeedsTopK(
        enough=lambda params, k: Enough.ALWAYS if params.greedy else Enough.NEVER,
        candidates=lambda params, top: top.candidates.head(1),
    ),
    place=140,
    rows=_rows,
    on_device=_on_device,
    with_mirostat=True,
    entries=(
        ChainEntry(
            "temp",
            {"temp": "temperature"},
            is_on=lambda params: params.temperature != 1.0,
            apply=lambda params, candidates, _: masked_temperature(candidates, params.temperature),
        ),
    ),
)
