"""Logits to the next token id: settings, filters, and the chain that they make.

Knows nothing of models, tokenizers or text.
"""

from graphml.generate.sampling.best import (
    Best,
    Drawn,
    Settings,
    decides_always,
    draw_settings,
    draws_row,
    may_decide,
)
from graphml.generate.sampling.candidates import Candidates
from graphml.generate.sampling.chain import Sampler, flaw_of, make_sampler, sampler_of
from graphml.generate.sampling.numbers import Foreseen
from graphml.generate.sampling.params import SamplingParams, checked_params

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
