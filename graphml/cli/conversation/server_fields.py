"""Sampling parameters as fields of a chat request, by OpenAI's names and llama-server's.

Knows names; nothing of HTTP or messages.
"""

from __future__ import annotations

import json
import math
from typing import Any

from graphml.errors import UsageError
from graphml.option_fields import options_of
from graphml.sampling import SamplingParams

SAME = (
    "temperature", "top_k", "top_p", "min_p", "typical_p", "min_keep", "top_n_sigma", "xtc_probability",
    "xtc_threshold", "dynatemp_range", "dynatemp_exponent", "repeat_last_n", "repeat_penalty",
    "presence_penalty", "frequency_penalty", "dry_multiplier", "dry_base", "dry_allowed_length",
    "dry_penalty_last_n", "dry_sequence_breakers", "mirostat", "mirostat_tau", "mirostat_eta",
    "adaptive_target", "adaptive_decay", "samplers", "stop", "grammar", "regex",
)  # fmt: skip
"""Fields of the same name and meaning."""
ALWAYS = ("top_k", "top_p", "min_p")
"""Those that servers have defaults of their own for; they say nothing at temperature 0."""
OTHERS = ("logit_bias", "json_schema", "logprobs")
_DEFAULTS = SamplingParams()


def fields_of(params: SamplingParams) -> dict[str, Any]:
    """The fields; what is as by default is left to the server, but for temperature, top-k, top-p and min-p.

    UsageError for a setting that requests have no field for.
    """
    stated = options_of(SamplingParams)
    changed = {name for name in stated if getattr(params, name) != getattr(_DEFAULTS, name)}
    if strange := sorted(changed - {*SAME, *OTHERS}):
        raise UsageError(f"{stated[strange[0]].flags[-1]}: wanted no --server: requests have no field for it")
    wanted = changed | {"temperature"} | (set() if params.greedy else set(ALWAYS))
    found = {name: _plain(getattr(params, name)) for name in SAME if name in wanted}
    if params.logit_bias:
        biases = params.logit_bias.items()
        found["logit_bias"] = [[id, bias if math.isfinite(bias) else False] for id, bias in biases]
    if params.json_schema:
        schema = {"name": "answer", "schema": json.loads(params.json_schema), "strict": True}
        found["response_format"] = {"type": "json_schema", "json_schema": schema}
    if params.logprobs is not None:
        found |= {"logprobs": True, "top_logprobs": params.logprobs}
    return found


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
