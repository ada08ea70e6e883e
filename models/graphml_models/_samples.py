"""Tiny models that the tests build with random weights: metadata and tensor shapes under GGUF's names."""

from __future__ import annotations

from graphml.engine.architecture import SampleModel

Keys = dict[str, int | float | str]
Shapes = dict[str, tuple[int, ...]]


def llama_like(architecture: str) -> list[SampleModel]:
    """Models with the tensors and keys of llama, each with other of its options."""
    yarn: Keys = {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": 32,
    }
    return [
        transformer(architecture, "plain", n_head_kv=4),
        transformer(architecture, "grouped", n_head_kv=1, biases=True, scales=True, rope_factors=True),
        transformer(architecture, "tied", tied=True, metadata={**yarn, "rope.freq_base": 500.0}),
        transformer(architecture, "partial", metadata={"rope.dimension_count": 8, "attention.scale": 0.3}),
        transformer(architecture, "experts", n_expert=5, biases=True, scales=True),
    ]


def transformer(
    architecture: str,
    name: str = "dense",
    n_head_kv: int = 2,
    n_expert: int = 0,
    biases: bool = False,
    scales: bool = False,
    rope_factors: bool = False,
    tied: bool = False,
    metadata: Keys | None = None,
) -> SampleModel:
    """Two layers of rotary attention and a gated feed-forward, dense or with experts of which two are used.

    biases, scales: beside every matrix of a layer; tied: the embedding is the output matrix too; metadata:
    more keys, without the architecture's prefix.
    """
    n_embd, n_head, n_ff, n_vocab, n_layer = 64, 4, 96, 80, 2
    n_kv = n_embd // n_head * n_head_kv
    keys: Keys = {
        "context_length": 128, "vocab_size": n_vocab, "embedding_length": n_embd, "block_count": n_layer,
        "feed_forward_length": n_ff, "attention.head_count": n_head, "attention.head_count_kv": n_head_kv,
        "attention.layer_norm_rms_epsilon": 1e-5, **(metadata or {}),
    }  # fmt: skip
    matrices = {"attn_q": (n_embd, n_embd), "attn_k": (n_kv, n_embd), "attn_v": (n_kv, n_embd),
                "attn_output": (n_embd, n_embd)}  # fmt: skip
    experts: Shapes = {}
    if n_expert:
        keys |= {"expert_count": n_expert, "expert_used_count": 2}
        experts = {"ffn_gate_exps": (n_expert, n_ff, n_embd), "ffn_up_exps": (n_expert, n_ff, n_embd),
                   "ffn_down_exps": (n_expert, n_embd, n_ff)}  # fmt: skip
        matrices["ffn_gate_inp"] = (n_expert, n_embd)
    else:
        matrices |= {"ffn_gate": (n_ff, n_embd), "ffn_up": (n_ff, n_embd), "ffn_down": (n_embd, n_ff)}
    layer: Shapes = {"attn_norm.weight": (n_embd,), "ffn_norm.weight": (n_embd,)}
    for part, shape in {**matrices, **experts}.items():
        layer[f"{part}.weight"] = shape
        if biases:
            layer[f"{part}.bias"] = shape[:-1]
        if scales:
            layer[f"{part}.scale"] = shape[:1] if part in experts else (1,)
    tensors: Shapes = {"token_embd.weight": (n_vocab, n_embd), "output_norm.weight": (n_embd,)}
    if not tied:
        tensors["output.weight"] = (n_vocab, n_embd)
    if rope_factors:
        tensors["rope_freqs.weight"] = (n_embd // n_head // 2,)
    tensors |= {f"blk.{i}.{part}": shape for i in range(n_layer) for part, shape in layer.items()}
    return SampleModel(name, {f"{architecture}.{key}": value for key, value in keys.items()}, tensors)
