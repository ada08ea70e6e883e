"""Logits to the next token id: settings, filters, and the chain that they make.

Knows nothing of models, tokenizers or text.
"""

from graphml.generate.sampling.candidates import Candidates
from graphml.generate.sampling.chain import Sampler, make_sampler
from graphml.generate.sampling.params import SamplingParams

__all__ = ["Candidates", "Sampler", "SamplingParams", "make_sampler"]
