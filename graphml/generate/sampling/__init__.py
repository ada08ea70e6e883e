"""Logits to the next token id: settings, filters, and the chain that they make.

Knows nothing of models, tokenizers or text.
"""

from graphml.generate.sampling.best import Best, decides_always, draw_settings, may_decide
from graphml.generate.sampling.candidates import Candidates
from graphml.generate.sampling.chain import Sampler, make_sampler, sampler_of
from graphml.generate.sampling.numbers import Foreseen
from graphml.generate.sampling.params import SamplingParams, checked_params

__all__ = [
    "Best",
    "Candidates",
    "Foreseen",
    "Sampler",
    "SamplingParams",
    "checked_params",
    "decides_always",
    "draw_settings",
    "make_sampler",
    "may_decide",
    "sampler_of",
]
