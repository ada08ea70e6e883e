"""Tiny models that the tests build with random weights: metadata and tensor shapes under GGUF's names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

from graphml.loading.architecture import SampleModel
from graphml_models._config import LAYER_EPS, RMS_EPS

Metadata = dict[str, int | float | str | list[int]]  # without the architecture's prefix
Shapes = dict[str, tuple[int, ...]]

N_EMBD, N_HEAD, HEAD_DIM, N_FF, N_VOCAB = 64, 4, 16, 96, 80
SECTIONS: Metadata = {"rope.dimension_count": HEAD_DIM, "rope.dimension_sections": [4, 2, 2, 0]}
POST_NORMS: Shapes = {"post_attention_norm.weight": (N_EMBD,), "post_ffw_norm.weight": (N_EMBD,)}
FUSED_QKV: Shapes = {"attn_qkv.weight": (3 * N_EMBD, N_EMBD), "attn_qkv.bias": (3 * N_EMBD,)}
SPLIT_QKV = ("attn_q.weight", "attn_k.weight", "attn_v.weight")
HEAD_NORMS: Shapes = {"attn_q_norm.weight": (HEAD_DIM,), "attn_k_norm.weight": (HEAD_DIM,)}


class Changes(TypedDict):
    """Arguments of `transformer`: tensors to add, and the ends of the names of those to leave out."""

    top: Shapes
    without: tuple[str, ...]


def dense_layers(*layers: int, without: tuple[str, ...] = ()) -> Changes:
    """Layers with a feed-forward of their own among layers of experts; without: more to leave out."""
    own = {"ffn_gate": (N_FF, N_EMBD), "ffn_up": (N_FF, N_EMBD), "ffn_down": (N_EMBD, N_FF)}
    others = ["ffn_gate_inp.weight", "exp_probs_b.bias"]
    others += [f"{part}_{kind}.weight" for part in own for kind in ("exps", "shexp")]
    return {
        "top": {f"blk.{i}.{part}.weight": shape for i in layers for part, shape in own.items()},
        "without": (*(f"blk.{i}.{part}" for i in layers for part in others), *without),
    }


DENSE_FIRST = dense_layers(0)


def llama_like(architecture: str) -> list[SampleModel]:
    """Models with the tensors and keys of llama, each with other of its options."""
    yarn: Metadata = {
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


def row_norms(n_head_kv: int) -> Shapes:
    """Norms over all heads of q, and of k."""
    return {"attn_q_norm.weight": (N_EMBD,), "attn_k_norm.weight": (n_head_kv * HEAD_DIM,)}


def shared_expert(n_ff: int = 64) -> Shapes:
    """The matrices of a SwiGLU expert that all tokens share."""
    return {"ffn_gate_shexp.weight": (n_ff, N_EMBD), "ffn_up_shexp.weight": (n_ff, N_EMBD),
            "ffn_down_shexp.weight": (N_EMBD, n_ff)}  # fmt: skip


def transformer(
    architecture: str,
    name: str = "plain",
    n_head_kv: int = 2,
    n_expert: int = 0,
    biases: bool | tuple[str, ...] = False,
    scales: bool = False,
    rope_factors: bool = False,
    tied: bool = False,
    metadata: Mapping[str, int | float | str | list[int]] | None = None,
    layer: Mapping[str, tuple[int, ...]] | None = None,
    top: Mapping[str, tuple[int, ...]] | None = None,
    without: tuple[str, ...] = (),
    n_layer: int = 2,
    n_ff: int = N_FF,
    layer_norm: bool = False,
) -> SampleModel:
    """Layers of rotary attention and a gated feed-forward, dense or with experts of which two are used.

    biases, scales: beside every matrix of a layer, or the named ones; tied: the embedding is the output
    matrix too; metadata: more keys, without the architecture's prefix; layer, top: more tensors of each layer
    and of the model; without: tensors that there are not;
    layer_norm: instead of RMS norms.
    """
    n_kv = HEAD_DIM * n_head_kv
    keys: Metadata = {
        "context_length": 128, "vocab_size": N_VOCAB, "embedding_length": N_EMBD, "block_count": n_layer,
        "feed_forward_length": n_ff, "attention.head_count": N_HEAD, "attention.head_count_kv": n_head_kv,
        LAYER_EPS if layer_norm else RMS_EPS: 1e-5, **(metadata or {}),
    }  # fmt: skip
    matrices = {"attn_q": (N_EMBD, N_EMBD), "attn_k": (n_kv, N_EMBD), "attn_v": (n_kv, N_EMBD),
                "attn_output": (N_EMBD, N_EMBD)}  # fmt: skip
    experts: Shapes = {}
    if n_expert:
        keys |= {"expert_count": n_expert, "expert_used_count": 2}
        experts = {"ffn_gate_exps": (n_expert, n_ff, N_EMBD), "ffn_up_exps": (n_expert, n_ff, N_EMBD),
                   "ffn_down_exps": (n_expert, N_EMBD, n_ff)}  # fmt: skip
        matrices["ffn_gate_inp"] = (n_expert, N_EMBD)
    else:
        matrices |= {"ffn_gate": (n_ff, N_EMBD), "ffn_up": (n_ff, N_EMBD), "ffn_down": (N_EMBD, n_ff)}
    parts: Shapes = {"attn_norm.weight": (N_EMBD,), "ffn_norm.weight": (N_EMBD,)}
    for part, shape in {**matrices, **experts}.items():
        parts[f"{part}.weight"] = shape
        if biases is True or (biases and part in biases):
            parts[f"{part}.bias"] = shape[:-1]
        if scales:
            parts[f"{part}.scale"] = shape[:1] if part in experts else (1,)
    parts.update(layer or {})
    tensors: Shapes = {"token_embd.weight": (N_VOCAB, N_EMBD), "output_norm.weight": (N_EMBD,)}
    if not tied:
        tensors["output.weight"] = (N_VOCAB, N_EMBD)
    if rope_factors:
        tensors["rope_freqs.weight"] = (HEAD_DIM // 2,)
    tensors |= {f"blk.{i}.{part}": shape for i in range(n_layer) for part, shape in parts.items()}
    tensors.update(top or {})
    kept = {tensor: shape for tensor, shape in tensors.items() if not tensor.endswith(without)}
    return SampleModel(name, {f"{architecture}.{key}": value for key, value in keys.items()}, kept)


def layer_norm_transformer(
    architecture: str,
    name: str = "plain",
    n_head_kv: int = 4,
    fused: bool = True,
    biases: bool = True,
    gated: bool = False,
    tied: bool = False,
    metadata: Mapping[str, int | float | str | list[int]] | None = None,
    layer: Mapping[str, tuple[int, ...]] | None = None,
    top: Mapping[str, tuple[int, ...]] | None = None,
    without: tuple[str, ...] = (),
) -> SampleModel:
    """Two layers behind layer norms, as `transformer`.

    fused: queries, keys and values from one matrix; biases: of matrices and norms; gated: the feed-forward.
    """
    more: Shapes = {"attn_norm.bias": (N_EMBD,), "ffn_norm.bias": (N_EMBD,)} if biases else {}
    last: Shapes = {"output_norm.bias": (N_EMBD,)} if biases else {}
    if fused:
        rows = N_EMBD + 2 * HEAD_DIM * n_head_kv
        more |= {"attn_qkv.weight": (rows, N_EMBD), **({"attn_qkv.bias": (rows,)} if biases else {})}
        without += tuple(f"attn_{x}.{kind}" for x in "qkv" for kind in ("weight", "bias"))
    if not gated:
        without += ("ffn_gate.weight", "ffn_gate.bias")
    return transformer(
        architecture, name, n_head_kv, biases=biases, tied=tied, metadata=metadata, layer_norm=True,
        layer={**more, **(layer or {})}, top={**last, **(top or {})}, without=without,
    )  # fmt: skip


def bert_like(
    architecture: str,
    name: str = "plain",
    fused: bool = False,
    biases: bool = True,
    gated: bool = False,
    metadata: Mapping[str, int | float | str | list[int]] | None = None,
    layer: Mapping[str, tuple[int, ...]] | None = None,
    top: Mapping[str, tuple[int, ...]] | None = None,
    without: tuple[str, ...] = (),
) -> SampleModel:
    """Two layers with norms behind the blocks and no logits, as `layer_norm_transformer`."""
    kinds = ("weight", "bias")
    behind = {
        f"{part}.{kind}": (N_EMBD,) for part in ("attn_output_norm", "layer_output_norm") for kind in kinds
    }
    first: Shapes = {
        "token_types.weight": (2, N_EMBD),
        **{f"token_embd_norm.{kind}": (N_EMBD,) for kind in kinds},
    }
    before = tuple(f"{part}_norm.{kind}" for part in (".attn", ".ffn") for kind in kinds)
    sample = layer_norm_transformer(
        architecture, name, fused=fused, biases=biases, gated=gated, tied=True, metadata=metadata,
        layer={**behind, **(layer or {})}, top={**first, **(top or {})}, without=(*before, *without),
    )  # fmt: skip
    kept = {key: shape for key, shape in sample.tensors.items() if not key.startswith("output_norm")}
    return SampleModel(name, sample.metadata, kept)
