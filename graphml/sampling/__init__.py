"""Logits to the next token id: settings, filters, and the chain that they make.

Knows nothing of models; of tokenizers the texts of their tokens.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from graphml.sampling.candidates.candidates import Candidates
from graphml.sampling.candidates.filter import Enough, Filter, Needs, NeedsTopK
from graphml.sampling.candidates.random_numbers import PeekableRandom
from graphml.sampling.candidates.top_k_logits import DeviceSample, DeviceSettings, TopK
from graphml.sampling.chain.next_logits import NextLogits
from graphml.sampling.chain.sampler import Sampler, flaw_of, make_sampler, sampler_of
from graphml.sampling.chain.top_k_sampling import (
    device_samples_row,
    device_settings,
    samples_without_row,
    top_k_enough,
)
from graphml.sampling.chain_from_entries import Chain, ChainCandidates, chain
from graphml.sampling.settings.params import SamplingParams, changed_params, checked_params

if TYPE_CHECKING:
    from graphml.sampling.structured import grammar, json_schema

__all__ = [
    "Candidates",
    "Chain",
    "ChainCandidates",
    "DeviceSample",
    "DeviceSettings",
    "Enough",
    "Filter",
    "Needs",
    "NeedsTopK",
    "NextLogits",
    "PeekableRandom",
    "Sampler",
    "SamplingParams",
    "TopK",
    "chain",
    "changed_params",
    "checked_params",
    "device_samples_row",
    "device_settings",
    "flaw_of",
    "grammar",
    "json_schema",
    "make_sampler",
    "sampler_of",
    "samples_without_row",
    "top_k_enough",
]

_STRUCTURED = ("grammar", "json_schema")


def __getattr__(name: str) -> Any:
    """What reads vocabularies is imported when it is first used."""
    if name not in _STRUCTURED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("graphml.sampling.structured"), name)
