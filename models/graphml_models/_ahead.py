"""Multi-token prediction (DeepSeek-V3, 2024, arXiv:2412.19437, section 2.2): a layer behind the others.

It reads a token's hidden row and the id of the next token, and predicts the one after that. The hidden row is
that behind the output norm, as in llama.cpp; to predict further, the layer's own row behind its norm takes
that place. T tokens, O output rows, D model width.
"""

from __future__ import annotations

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import SampleModel, Tensors
from graphml_models import llama
from graphml_models._samples import N_EMBD, N_VOCAB, Metadata, Shapes
from graphml_models.llama import Attention, C, FeedForward


def build(
    g: Builder,
    config: C,
    weights: Tensors,
    hidden_TD: Node,
    attention: Attention[C] = llama.attention,
    feed_forward: FeedForward[C] = llama.feed_forward,
    ffn_norm: str = "ffn_norm",
) -> Node:
    """Logits [O, vocabulary] of what follows `g.tokens`, which follow the tokens of the hidden rows.

    attention, feed_forward, ffn_norm: as of `llama.build`. The first of several layers predicts all.
    """
    table, eps = config.rope.table(g, weights), config.norm_eps
    (layer,) = weights.layers([config.n_layer])
    e_TD = g.embed(layer.get("nextn.embed_tokens") or weights["token_embd"], g.tokens)
    e_TD = g.rms_norm(e_TD, layer["nextn.enorm"], eps, "embedding_norm")
    h_TD = g.rms_norm(hidden_TD, layer["nextn.hnorm"], eps, "hidden_norm")
    x_TD = layer.linear(g.concat(e_TD, h_TD), "nextn.eh_proj", "joined")
    with g.scope("layers.0"):
        x_TD = llama.block(g, config, layer, table, x_TD, attention, feed_forward, ffn_norm)
    own_norm = layer.get("nextn.shared_head_norm") or layer.get("layer_output_norm")
    norm = own_norm or weights["output_norm"]
    x_TD = g.rms_norm(x_TD, norm, eps, "output_norm")
    own = layer.get("nextn.shared_head_head") is not None
    return layer.logits(x_TD, of="nextn.shared_head_head") if own else weights.logits(x_TD)


def sample(
    name: str,
    model: SampleModel,
    shared: bool = True,
    keys: Metadata | None = None,
    other: Shapes | None = None,
    without: tuple[str, ...] = (),
) -> SampleModel:
    """A sample of two layers with the last one's tensors once more, as the layer that predicts further.

    shared: it has the model's embedding and output matrix, not its own. keys: metadata besides; other:
    tensors of the layer that are not those of the last one; without: those that it has not.
    """
    shapes: Shapes = {
        "eh_proj": (N_EMBD, 2 * N_EMBD),
        **dict.fromkeys(("enorm", "hnorm", "shared_head_norm"), (N_EMBD,)),
    }
    if not shared:
        shapes |= {"embed_tokens": (N_VOCAB, N_EMBD), "shared_head_head": (N_VOCAB, N_EMBD)}
    last = {key: shape for key, shape in model.tensors.items() if key.startswith("blk.1.")}
    last |= {f"blk.1.{key}": shape for key, shape in (other or {}).items()}
    gone = {f"blk.1.{key}" for key in without}
    tensors = {key.replace("blk.1.", "blk.2."): shape for key, shape in last.items() if key not in gone}
    tensors |= {f"blk.2.nextn.{key}.weight": shape for key, shape in shapes.items()}
    ahead_keys: Metadata = {"block_count": 3, "nextn_predict_layers": 1, **(keys or {})}
    metadata = {**model.metadata, **{f"{name}.{key}": value for key, value in ahead_keys.items()}}
    return SampleModel("ahead", metadata, {**model.tensors, **tensors})
