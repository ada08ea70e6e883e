"""Phi-3.5-MoE (Abdin et al. 2024, arXiv:2404.14219): experts, LongRoPE, and biases everywhere.

Norms have a bias but subtract no mean, as in llama.cpp. T tokens, D model
width.
"""

from __future__ import annotations

from functools import partial

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import SampleModel, Tensors
from graphml_models import llama
from graphml_models._config import Config
from graphml_models._samples import transformer


def norm(g: Builder, config: Config, tensors: Tensors, x: Node, tensor: str, name: str) -> Node:
    """Normed by the root mean square, with a bias."""
    return g.add(g.rms_norm(x, tensors[tensor], config.norm_eps), tensors[f"{tensor}.bias"], name)


attention = partial(llama.attention, mode="neox")
feed_forward = partial(llama.feed_forward, scaled=False)
build = partial(llama.build, attention=attention, feed_forward=feed_forward, norm=norm)


def sample(name: str) -> list[SampleModel]:
    """A tiny model for tests."""
    norms = {f"{part}.bias": (64,) for part in ("attn_norm", "ffn_norm")}
    top = {"output_norm.bias": (64,), "output.bias": (80,), "rope_factors_short.weight": (8,),
           "rope_factors_long.weight": (8,)}  # fmt: skip
    biases = ("attn_q", "attn_k", "attn_v", "attn_output")
    return [transformer(name, n_expert=5, biases=biases, layer=norms, top=top)]
