"""Apertus (Swiss AI Initiative 2025, arXiv:2509.14233): qwen3 with an ungated feed-forward of xIELU.

xIELU (Huang and Schlag 2024, arXiv:2411.13010): a parabola above 0, an exponential below. T tokens, D model
width, F hidden.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import exp, log1p
from typing import NamedTuple, Self

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Keys, Layer, SampleModel
from graphml_models import _config, llama, qwen3
from graphml_models._ffn import plain_ffn
from graphml_models._samples import HEAD_NORMS, transformer

PREFIX = "xielu"  # of its keys, which do not begin with the architecture
NUMBERS = ("alpha_p", "alpha_n", "beta", "eps")


class Xielu(NamedTuple):
    """The numbers of a layer's activation, as checkpoints have them: alphas before their softplus."""

    alpha_p: float
    alpha_n: float
    beta: float
    eps: float

    def activate(self, g: Builder, x: Node) -> Node:
        """p x^2 + beta x above 0; else n (exp(min(x, eps)) - 1 - x) + beta x; p, n: from the alphas."""
        rise, fall = softplus(self.alpha_p), softplus(self.alpha_n)
        above = g.relu(x)
        parabola = g.mul(above, g.scale(above, rise, self.beta))
        bent = g.exp(g.clamp(x, float("-inf"), self.eps))
        # n = beta + fall, so that x itself is left with -fall
        below = g.sub(g.scale(bent, self.beta + fall, -self.beta - fall), g.scale(x, fall))
        return g.where(above, parabola, below, "xielu")


def softplus(x: float) -> float:
    """log(1 + exp(x))."""
    return max(x, 0.0) + log1p(exp(-abs(x)))


@dataclass(frozen=True)
class Config(_config.Config):
    """And the activation of each layer."""

    activations: tuple[Xielu, ...]

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        known, own = _config.read(keys), Keys(keys.metadata, PREFIX)
        for name in NUMBERS:
            if not own.has(name):
                raise own.unsupported(name, f"a number for each of {known.n_layer} layers")
        by_layer = (own.numbers(name, known.n_layer, 0.0) for name in NUMBERS)
        return cls(**vars(known), activations=tuple(map(Xielu, *by_layer)))


def feed_forward(g: Builder, config: Config, layer: Layer, x_TD: Node) -> Node:
    """down(xIELU(up(x)))."""
    return plain_ffn(g, layer, x_TD, config.activations[layer.index].activate)


build = partial(llama.build, attention=qwen3.attention, feed_forward=feed_forward)


def sample(name: str) -> list[SampleModel]:
    """A tiny model for tests."""
    model = transformer(name, layer=HEAD_NORMS, rope_factors=True, without=("ffn_gate.weight",))
    numbers = {f"{PREFIX}.{key}": value for key, value in zip(NUMBERS, (0.6, 0.7, 0.5, -1e-6), strict=True)}
    return [SampleModel(model.name, {**model.metadata, **numbers}, model.tensors)]
