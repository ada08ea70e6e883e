"""DistilBERT: `DistilBertModel`, BERT without kinds of texts; its classifier has another activation."""

from __future__ import annotations

from graphml.loading.huggingface.config import HfConfig, Value, decoder_keys
from graphml.loading.huggingface.family import Family
from graphml_models.huggingface import bert


def keys(config: HfConfig) -> dict[str, Value]:
    """Sizes; the epsilon is the class's own."""
    config.activation("gelu_erf")
    config.ignore("sinusoidal_pos_embds")  # the tensor has the numbers
    return decoder_keys(config, eps="attention.layer_norm_epsilon", width=config.size("hidden_dim"))


FAMILY = Family(
    model_types=("distilbert",),
    architecture="bert",
    keys=keys,
    names={
        **{name: place for name, place in bert.EMBEDDINGS.items() if "token_type" not in name},
        "layer.{}.attention.q_lin": "blk.{}.attn_q",
        "layer.{}.attention.k_lin": "blk.{}.attn_k",
        "layer.{}.attention.v_lin": "blk.{}.attn_v",
        "layer.{}.attention.out_lin": "blk.{}.attn_output",
        "layer.{}.sa_layer_norm": "blk.{}.attn_output_norm",
        "layer.{}.ffn.lin1": "blk.{}.ffn_up",
        "layer.{}.ffn.lin2": "blk.{}.ffn_down",
        "layer.{}.output_layer_norm": "blk.{}.layer_output_norm",
        "vocab_transform": None, "vocab_layer_norm": None, "vocab_projector": None,
    },
    defaults={"layer_norm_eps": 1e-12},
    logits=False,
)  # fmt: skip
