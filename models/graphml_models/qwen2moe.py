"""Qwen2 with experts (Yang et al. 2024, arXiv:2407.10671): qwen2 with experts, one of them shared.

T tokens, D model width.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Self

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.shape import fixed
from graphml.loading.architecture import Keys, Layer, SampleModel
from graphml_models import _windows, llama
from graphml_models._experts import swiglu_experts
from graphml_models._ffn import gated_ffn
from graphml_models._samples import shared_expert, transformer

# Of folders alone: files may say `expert_weights_norm`, which llama.cpp does not read for these two.
NORMALISE = "router.normalise"


@dataclass(frozen=True)
class Config(_windows.FolderConfig):
    """And normalise: the weights of a token's experts sum to 1."""

    normalise: bool
    in_files: ClassVar = False

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the metadata; of a GGUF file they do as `in_files` says, whatever is in it."""
        config = _windows.FolderConfig.read(keys)
        return cls(**vars(config), normalise=keys.boolean(NORMALISE, cls.in_files))


def feed_forward(g: Builder, config: Config, layer: Layer, x_TD: Node) -> Node:
    """Experts by the softmax of the router, and the shared one."""
    chosen_TD = swiglu_experts(g, layer, x_TD, config.n_expert_used, config.normalise)
    return g.add(chosen_TD, shared(g, layer, x_TD), "experts")


def shared(g: Builder, layer: Layer, x_TD: Node, scaled: bool = False) -> Node:
    """The shared expert times its gate, one number for each token; scaled: see `Tensors.scale`."""
    gate_1D = g.reshape(layer["ffn_gate_inp_shexp"], 1, fixed(x_TD.shape[1]), keep=0)
    gate_T1 = g.sigmoid(g.mul_mat(gate_1D, x_TD, "shared_gate"))
    return g.mul(gated_ffn(g, layer, x_TD, suffix="_shexp", scaled=scaled), gate_T1)


build = partial(llama.build, attention=_windows.attention, feed_forward=feed_forward)


def sample(name: str) -> list[SampleModel]:
    """Tiny models for tests."""
    shared = {**shared_expert(), "ffn_gate_inp_shexp.weight": (64,)}
    return [transformer(name, n_expert=5, biases=("attn_q", "attn_k", "attn_v"), layer=shared)]
