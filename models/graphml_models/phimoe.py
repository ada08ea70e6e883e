"""Phi-3.5-MoE (Abdin et al. 2024, arXiv:2404.14219): experts, LongRoPE, and biases everywhere.

In GGUF files norms have a bias but subtract no mean, and weights of experts sum to 1, as in llama.cpp;
folders of transformers have layer norms and the routing of SparseMixer (Liu et al. 2024, arXiv:2409.12136).
T tokens, D model width, E experts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Self

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.shape import fixed
from graphml.loading.architecture import Keys, Layer, SampleModel, Tensors
from graphml_models import _config, llama
from graphml_models._experts import Chosen
from graphml_models._samples import transformer

JITTER = "expert_router_jitter"


@dataclass(frozen=True)
class Config(_config.Config):
    """As of every decoder; jitter: of SparseMixer, beside layer norms; None: as in GGUF files."""

    jitter: float | None

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        known = _config.read(keys)
        jitter = keys.number(JITTER) if keys.has(JITTER) else None
        if jitter is not None and (jitter < 0 or known.n_expert_used != 2):
            raise keys.unsupported(JITTER, "0 or more, and 2 experts used")
        return cls(**vars(known), jitter=jitter)


def norm(g: Builder, config: Config, tensors: Tensors, x: Node, tensor: str, name: str) -> Node:
    """A layer norm, or normed by the root mean square, with a bias."""
    if config.jitter is not None:
        return g.layer_norm(x, tensors[tensor], tensors[f"{tensor}.bias"], config.norm_eps, name)
    return g.add(g.rms_norm(x, tensors[tensor], config.norm_eps), tensors[f"{tensor}.bias"], name)


def feed_forward(g: Builder, config: Config, layer: Layer, x_TD: Node) -> Node:
    """Experts; of SparseMixer each weight is a softmax of its own, over the scores near to its expert's.

    The second expert's does without the first, [T, D].
    """
    if config.jitter is None:
        return llama.feed_forward(g, config, layer, x_TD, scaled=False)
    scores_TE = layer.linear(x_TD, "ffn_gate_inp", "router")
    ids_T2 = g.top_k(scores_TE, 2, "experts")
    numbers_TE = g.cast(g.column_numbers(scores_TE, fixed(scores_TE.shape[1])), "f32")
    weights, taken_TE = [], None
    for i in range(2):
        id_T1 = g.columns(ids_T2, i, i + 1)
        score_T1 = g.gather(scores_TE, id_T1)
        behind_TE = g.sub(scores_TE, score_T1)
        width_TE = g.scale(g.maximum(g.absolute(scores_TE), score_T1), 2 * config.jitter)
        near_TE = g.less_equal(g.neg(behind_TE), width_TE, "near")
        if taken_TE is not None:
            near_TE = g.less(taken_TE, near_TE, "near_others")
        shares_TE = g.where(near_TE, g.exp(behind_TE), g.constant(0.0))
        weights.append(g.div(g.gather(shares_TE, id_T1), g.sum_rows(shares_TE)))
        taken_TE = g.equal(numbers_TE, g.cast(id_T1, "f32"))
    chosen = Chosen(g, layer, ids_T2, g.concat(weights[0], weights[1], "expert_weights"))
    return chosen.combine(chosen.gated(x_TD))


attention = partial(llama.attention, mode="neox")
build = partial(llama.build, attention=attention, feed_forward=feed_forward, norm=norm)


def sample(name: str) -> list[SampleModel]:
    """Tiny models for tests, of GGUF files and of folders of transformers."""
    norms = {f"{part}.bias": (64,) for part in ("attn_norm", "ffn_norm")}
    top = {"output_norm.bias": (64,), "output.bias": (80,), "rope_factors_short.weight": (8,),
           "rope_factors_long.weight": (8,)}  # fmt: skip
    biases = ("attn_q", "attn_k", "attn_v", "attn_output")
    plain = transformer(name, n_expert=5, biases=biases, layer=norms, top=top)
    return [plain, replace(plain, name="mixer", metadata={**plain.metadata, f"{name}.{JITTER}": 0.1})]
