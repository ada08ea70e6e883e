"""Logits to the next token id: settings, filters, and the chain that they make.

Knows nothing of models, tokenizers or text.
"""

from graphml.sampling.candidates import Candidates
from graphml.sampling.params import SamplingParams, checked_params
from graphml.sampling.random_numbers import Foreseen
from graphml.sampling.sampler import Sampler, flaw_of, make_sampler, sampler_of
from graphml.sampling.top_k_sampling import (
    Best,
    Drawn,
    Settings,
    decides_always,
    draw_settings,
    draws_row,
    may_decide,
)

__all__ = [
    "Best",
    "Candidates",
    "Drawn",
    "Foreseen",
    "Sampler",
    "SamplingParams",
    "Settings",
    "checked_params",
    "decides_always",
    "draw_settings",
    "draws_row",
    "flaw_of",
    "make_sampler",
    "may_decide",
    "sampler_of",
]
