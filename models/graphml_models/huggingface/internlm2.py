"""InternLM2 and 2.5: `InternLM2ForCausalLM` of its authors, llama with q, k and v in one matrix."""

from __future__ import annotations

from graphml.loading.huggingface.config import HfConfig, Value
from graphml.loading.huggingface.family import Change, Family, To, after, paired, rows
from graphml_models.huggingface._names import llama_keys


def keys(config: HfConfig) -> dict[str, Value]:
    """As of llama; biases are tensors of the file."""
    config.ignore("bias")
    return llama_keys(config)


def _part(kind: str) -> Change:
    """Rows of q, k or v: each head of keys stands behind the queries that read it, its values behind it."""

    def part(config: HfConfig) -> tuple[int, int, int, int]:
        n_kv = config.size("attention.head_count_kv", config.size("attention.head_count"))
        n_query = config.size("attention.head_count") // max(n_kv, 1)
        start = {"q": 0, "k": n_query, "v": n_query + 1}[kind]
        return n_kv, n_query + 2, start, start + (n_query if kind == "q" else 1)

    return rows(part)


FAMILY = Family(
    model_types=("internlm2",),
    architecture="internlm2",
    keys=keys,
    names={
        "tok_embeddings": "token_embd", "norm": "output_norm", "output": "output",
        "layers.{}.attention_norm": "blk.{}.attn_norm",
        "layers.{}.attention.wqkv": (
            To("blk.{}.attn_q", after(_part("q"), paired("attention.head_count"))),
            To("blk.{}.attn_k", after(_part("k"), paired("attention.head_count_kv"))),
            To("blk.{}.attn_v", _part("v")),
        ),
        "layers.{}.attention.wo": "blk.{}.attn_output",
        "layers.{}.ffn_norm": "blk.{}.ffn_norm",
        "layers.{}.feed_forward.w1": "blk.{}.ffn_gate",
        "layers.{}.feed_forward.w2": "blk.{}.ffn_down",
        "layers.{}.feed_forward.w3": "blk.{}.ffn_up",
    },
    defaults={"hidden_act": "silu", "rms_norm_eps": 1e-6},
)  # fmt: skip
