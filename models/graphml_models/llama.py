"""Llama and its kin (Touvron et al. 2023, arXiv:2302.13971), dense or with experts (Mixtral, 2401.04088).

T tokens, D model width, N heads, K key-value heads, H head width, F hidden.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, TypeVar

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Layer, Tensors
from graphml_models._attention import attention as attention
from graphml_models._config import Config
from graphml_models._experts import swiglu_experts
from graphml_models._ffn import gated_ffn
from graphml_models._samples import llama_like

C = TypeVar("C", bound=Config)
Attention = Callable[[Builder, C, Layer, Node, Node], Node]
FeedForward = Callable[[Builder, C, Layer, Node], Node]
Project = Callable[[Layer, Node], Node]
Tables = Callable[[Builder, C, Tensors], Sequence[Node]]
Embed = Callable[[Builder, C, Tensors], Node]
Norm = Callable[[Builder, C, Tensors, Node, str, str], Node]
Head = Callable[[Tensors, Node], Node]
Norms = Literal["before", "after", "both", "shared"]


def attn_out(layer: Layer, h: Node) -> Node:
    """Attention's output projection, [T, D]."""
    return layer.linear(h, "attn_output", "attn_out")


def feed_forward(g: Builder, config: Config, layer: Layer, x_TD: Node, scaled: bool = True) -> Node:
    """SwiGLU, dense or with experts; scaled: see `Tensors.scale`."""
    if config.n_expert_used:
        return swiglu_experts(g, layer, x_TD, config.n_expert_used, scaled=scaled)
    return gated_ffn(g, layer, x_TD, scaled=scaled)


def rms_norm(g: Builder, config: Config, tensors: Tensors, x: Node, tensor: str, name: str) -> Node:
    """x normed by its root mean square, times a tensor; name: of the node."""
    return g.rms_norm(x, tensors[tensor], config.norm_eps, name)


def block(
    g: Builder,
    config: C,
    layer: Layer,
    table: Node,
    x_TD: Node,
    attention: Attention[C] = attention,
    feed_forward: FeedForward[C] = feed_forward,
    ffn_norm: str = "ffn_norm",
    project: Project = attn_out,
    norms: Norms = "before",
    norm: Norm[C] = rms_norm,
) -> Node:
    """Attention, then feed-forward, each normed and added to the residual; arguments as of `build`."""
    before, after = norms != "after", norms in ("after", "both")
    n_TD = norm(g, config, layer, x_TD, "attn_norm", "attn_norm") if before else x_TD
    h_TD = project(layer, attention(g, config, layer, table, n_TD))
    if after:
        h_TD = norm(g, config, layer, h_TD, "post_attention_norm", "attn_post_norm")
    x_TD = g.add(x_TD, h_TD, "attn_residual")
    if norms != "shared":
        n_TD = norm(g, config, layer, x_TD, ffn_norm, "ffn_norm") if before else x_TD
    h_TD = feed_forward(g, config, layer, n_TD)
    if after:
        h_TD = norm(g, config, layer, h_TD, "post_ffw_norm", "ffn_post_norm")
    return g.add(x_TD, h_TD, "ffn_residual")


def one_table(g: Builder, config: Config, weights: Tensors) -> Sequence[Node]:
    """The same rope table for every layer."""
    return [config.rope.table(g, weights)] * config.n_layer


def embedded(g: Builder, config: Config, weights: Tensors) -> Node:
    """The rows of the tokens, [T, D]."""
    return g.embed(weights["token_embd"], g.tokens)


def logits(weights: Tensors, x_TD: Node) -> Node:
    """Logits [O, vocabulary] of the last normed rows."""
    return weights.logits(x_TD)


def hidden_rows(weights: Tensors, x_TD: Node) -> Node:
    """The last normed rows themselves, [T, D], of models that embed texts."""
    return x_TD


def build(
    g: Builder,
    config: C,
    weights: Tensors,
    attention: Attention[C] = attention,
    feed_forward: FeedForward[C] = feed_forward,
    ffn_norm: str = "ffn_norm",
    project: Project = attn_out,
    output_norm: str = "output_norm",
    tables: Tables[C] = one_table,
    embed: Embed[C] = embedded,
    norms: Norms = "before",
    norm: Norm[C] = rms_norm,
    head: Head = logits,
) -> Node:
    """Logits [O, vocabulary]; near copies of llama bring an attention or a feed-forward of their own.

    ffn_norm, output_norm: tensors of the norms before the feed-forward and before the logits; project: from
    what `attention` gives to D; tables: of the layers' ropes; norms: where each half of a block has a `norm`;
    "shared": one before both halves, which are side by side; head: what makes logits of the last normed rows,
    `hidden_rows` in models that have none.
    """
    ropes = tables(g, config, weights)
    x_TD = embed(g, config, weights)
    for layer in weights.layers(config.n_layer):
        table = ropes[layer.index]
        x_TD = block(g, config, layer, table, x_TD, attention, feed_forward, ffn_norm, project, norms, norm)
    return head(weights, norm(g, config, weights, x_TD, output_norm, "output_norm"))


sample = llama_like  # tiny models for tests
