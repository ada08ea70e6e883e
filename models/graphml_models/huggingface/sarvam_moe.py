"""Sarvam 30B: `Glm4MoeForCausalLM` by `SarvamMoEConfig`, whose checkpoints have the names of Ling 2.0."""

from __future__ import annotations

from graphml.loading.huggingface.config import HfConfig, Value
from graphml.loading.huggingface.family import Change, Family, To, rows
from graphml_models.huggingface._names import EXPERTS, HEAD_NORMS, LLAMA, llama_keys
from graphml_models.huggingface.glm4_moe import SHARED, routing_keys


def keys(config: HfConfig) -> dict[str, Value]:
    """As of llama, with norms of heads and DeepSeek-V3's experts."""
    config.only("use_qk_norm", True)
    return {**llama_keys(config), **routing_keys(config)}


def heads_of(kind: str) -> Change:
    """Rows of the heads of q, k or v in a matrix of all."""

    def part(config: HfConfig) -> tuple[int, int, int, int]:
        n_head, n_kv = config.size("attention.head_count"), config.size("attention.head_count_kv")
        start = {"q": 0, "k": n_head, "v": n_head + n_kv}[kind]
        return 1, n_head + 2 * n_kv, start, start + (n_head if kind == "q" else n_kv)

    return rows(part)


FAMILY = Family(
    model_types=("sarvam_moe",),
    architecture="bailingmoe2",
    keys=keys,
    names={
        **LLAMA, **HEAD_NORMS, **EXPERTS, **SHARED,
        "word_embeddings": "token_embd",
        "layers.{}.attention.query_key_value": tuple(To(f"blk.{{}}.attn_{x}", heads_of(x)) for x in "qkv"),
        "layers.{}.attention.dense": "blk.{}.attn_output",
        "layers.{}.attention.query_layernorm": "blk.{}.attn_q_norm",
        "layers.{}.attention.key_layernorm": "blk.{}.attn_k_norm",
        "layers.{}.mlp.gate.expert_bias": "blk.{}.exp_probs_b.bias",
    },
    defaults={"rope_theta": 8000000.0},
)  # fmt: skip
