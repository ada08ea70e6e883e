"""Shapes of benchmark models: sizes, metadata and tensors of GGUF files.

Sizes are those of the named models, except the context, which is 32768 so that depth can be measured.
Knows no formats and no files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from graphml.errors import UsageError

Value = str | int | float | list[int]
LONG_CONTEXT = 32768


@dataclass(frozen=True)
class Shape:
    """Sizes of a model: n_embd wide, heads of head_dim (0: n_embd / n_head), (experts') feed-forward n_ff.

    gated: feed-forward with a gate (SwiGLU), else two matrices. biased: LayerNorm and a bias everywhere, and
    one norm for attention and feed-forward, as in phi-2; else RMSNorm. head_norms: RMSNorm of each head's
    query and key. post_norms: also after attention and feed-forward. window: of attention, except in layers
    with full attention. rope_factors: the file has frequency factors, like llama 3.
    tied: the embedding is the output too. d_state: elements of the state of each channel; all layers
    are Mamba 2, twice as wide inside, in heads of 64, and n_head is unused; 0: layers of attention and
    feed-forward. n_delta: heads, 128 wide, of the gated delta nets that replace attention in three of four
    layers, as in Qwen3.5.
    """

    name: str
    arch: str
    n_vocab: int
    n_embd: int
    n_layer: int
    n_head: int
    n_head_kv: int
    n_ff: int
    head_dim: int = 0
    n_ctx: int = LONG_CONTEXT
    norm_eps: float = 1e-5
    rope_base: float = 10000.0
    n_rot: int = 0
    n_expert: int = 0
    n_expert_used: int = 0
    gated: bool = True
    biased: bool = False
    head_norms: bool = False
    post_norms: bool = False
    window: int = 0
    rope_factors: bool = False
    tied: bool = False
    d_state: int = 0
    n_delta: int = 0

    @property
    def n_inner(self) -> int:
        """Channels of a Mamba 2 layer."""
        return 2 * self.n_embd

    @property
    def head_width(self) -> int:
        """Elements of one head."""
        return self.head_dim or self.n_embd // self.n_head


_ALL = (
    Shape("smollm2-135m", "llama", 49152, 576, 30, 9, 3, 1536, rope_base=100000.0, tied=True),
    Shape("tinyllama-1.1b", "llama", 32000, 2048, 22, 32, 4, 5632),
    Shape("llama-3.2-3b", "llama", 128256, 3072, 28, 24, 8, 8192, rope_base=500000.0, rope_factors=True,
          tied=True),
    Shape("phi-2", "phi2", 51200, 2560, 32, 32, 32, 10240, n_rot=32, gated=False, biased=True),
    Shape("qwen3-0.6b", "qwen3", 151936, 1024, 28, 16, 8, 3072, head_dim=128, norm_eps=1e-6,
          rope_base=1000000.0, head_norms=True, tied=True),
    # The heads and experts of Qwen3-30B-A3B, 12 of its 48 layers, 32 of its 128 experts.
    Shape("qwen3-moe-small", "qwen3moe", 151936, 2048, 12, 32, 4, 768, head_dim=128, norm_eps=1e-6,
          rope_base=1000000.0, head_norms=True, n_expert=32, n_expert_used=8),
    # About half of Qwen3-30B-A3B's width, a quarter of its layers and experts.
    Shape("qwen3moe-1b", "qwen3moe", 151936, 1024, 12, 16, 4, 512, head_dim=128, norm_eps=1e-6,
          rope_base=1000000.0, head_norms=True, n_expert=32, n_expert_used=8),
    Shape("gemma3-270m", "gemma3", 262144, 640, 18, 4, 1, 2048, head_dim=256, norm_eps=1e-6,
          rope_base=1000000.0, head_norms=True, post_norms=True, window=512, tied=True),
    Shape("gemma3-1b", "gemma3", 262144, 1152, 26, 4, 1, 6912, head_dim=256, norm_eps=1e-6,
          rope_base=1000000.0, head_norms=True, post_norms=True, window=512, tied=True),
    # Mixtral's 8 experts of which 2 are used, at half its width, a quarter of its hidden size, 12 layers.
    Shape("mixtral-small", "llama", 32000, 2048, 12, 16, 4, 3584, rope_base=1000000.0, n_expert=8,
          n_expert_used=2),
    # Mamba2-1.3B.
    Shape("mamba2-1b", "mamba2", 50288, 2048, 48, 1, 1, 0, tied=True, d_state=128),
    # Qwen3.5's layers, narrower than those of its 2B and wider than those of its 0.8B.
    Shape("qwen35-1b", "qwen35", 151936, 1536, 24, 12, 2, 4608, head_dim=128, norm_eps=1e-6,
          rope_base=10000000.0, n_rot=32, head_norms=True, tied=True, n_delta=12),
    # For tests and for trying a benchmark without waiting.
    Shape("tiny", "llama", 320, 256, 2, 4, 2, 512, n_ctx=4096),
    Shape("tiny-moe", "llama", 320, 256, 2, 4, 2, 256, n_ctx=4096, n_expert=8, n_expert_used=2),
)  # fmt: skip
_MAMBA_HEAD, _DELTA_HEAD, _D_CONV = 64, 128, 4
SHAPES: Mapping[str, Shape] = {shape.name: shape for shape in _ALL}


def shape_named(name: str) -> Shape:
    """The shape of that name; UsageError with the known ones."""
    if name not in SHAPES:
        raise UsageError(f"--shape: wanted one of {', '.join(SHAPES)}; got {name!r}")
    return SHAPES[name]


def metadata(shape: Shape) -> dict[str, Value]:
    """The keys of a file of this shape, without `general.file_type`. It has no vocabulary."""
    epsilon = "layer_norm_epsilon" if shape.biased else "layer_norm_rms_epsilon"
    own: dict[str, Value] = {
        "context_length": shape.n_ctx,
        "embedding_length": shape.n_embd,
        "block_count": shape.n_layer,
        "feed_forward_length": shape.n_ff,
        "attention.head_count": shape.n_head,
        "attention.head_count_kv": shape.n_head_kv,
        f"attention.{epsilon}": shape.norm_eps,
        "rope.dimension_count": shape.n_rot or shape.head_width,
        "rope.freq_base": shape.rope_base,
        "vocab_size": shape.n_vocab,
    }
    if shape.head_dim:
        own |= {"attention.key_length": shape.head_dim, "attention.value_length": shape.head_dim}
    if shape.n_expert:
        own |= {"expert_count": shape.n_expert, "expert_used_count": shape.n_expert_used}
        own["expert_feed_forward_length"] = shape.n_ff
    if shape.window:
        own["attention.sliding_window"] = shape.window
    if shape.d_state:
        own |= {"attention.head_count": 0, "attention.head_count_kv": 0}
        own |= {"ssm.conv_kernel": _D_CONV, "ssm.inner_size": shape.n_inner, "ssm.state_size": shape.d_state}
        own |= {"ssm.time_step_rank": shape.n_inner // _MAMBA_HEAD, "ssm.group_count": 1}
    if shape.n_delta:
        own |= {"ssm.conv_kernel": _D_CONV, "ssm.inner_size": shape.n_delta * _DELTA_HEAD}
        own |= {"ssm.state_size": _DELTA_HEAD, "ssm.time_step_rank": shape.n_delta}
        own |= {"ssm.group_count": shape.n_delta, "rope.dimension_sections": [6, 5, 5, 0]}
    return {
        "general.architecture": shape.arch,
        "general.name": f"{shape.name}, random weights",
        "tokenizer.ggml.model": "no_vocab",
        **{f"{shape.arch}.{key}": value for key, value in own.items()},
    }


def tensors(shape: Shape) -> dict[str, tuple[int, ...]]:
    """Name -> shape of all tensors, in NumPy order (a matrix is [out, in]), in file order."""
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (shape.n_vocab, shape.n_embd)}
    if shape.rope_factors:
        shapes["rope_freqs.weight"] = (shape.head_width // 2,)
    for layer in range(shape.n_layer):
        parts = _mamba2(shape) if shape.d_state else _transformer(shape, layer)
        shapes |= {f"blk.{layer}.{name}": size for name, size in parts.items()}
    shapes |= _norm("output_norm", shape.n_embd, shape.biased)
    if not shape.tied:
        shapes |= _linear("output", shape.n_vocab, shape.n_embd, shape.biased)
    return shapes


def _transformer(shape: Shape, layer: int) -> dict[str, tuple[int, ...]]:
    ffn = _experts(shape) if shape.n_expert else _ffn(shape)
    if shape.post_norms:
        ffn |= {f"{name}.weight": (shape.n_embd,) for name in ("post_attention_norm", "post_ffw_norm")}
    if not shape.n_delta:
        return {**_attention(shape), **ffn}
    ffn["post_attention_norm.weight"] = ffn.pop("ffn_norm.weight")
    if (layer + 1) % 4:
        return {**_delta_net(shape), **ffn}
    gated = {"attn_q.weight": (2 * shape.n_head * shape.head_width, shape.n_embd)}
    return {**_attention(shape), **gated, **ffn}


def _delta_net(shape: Shape) -> dict[str, tuple[int, ...]]:
    width, inner = shape.n_embd, shape.n_delta * _DELTA_HEAD
    return {
        **_norm("attn_norm", width, False),
        "attn_qkv.weight": (3 * inner, width),
        "attn_gate.weight": (inner, width),
        "ssm_conv1d.weight": (3 * inner, _D_CONV),
        "ssm_dt.bias": (shape.n_delta,),
        "ssm_a": (shape.n_delta,),
        "ssm_beta.weight": (shape.n_delta, width),
        "ssm_alpha.weight": (shape.n_delta, width),
        "ssm_norm.weight": (_DELTA_HEAD,),
        "ssm_out.weight": (width, inner),
    }


def _mamba2(shape: Shape) -> dict[str, tuple[int, ...]]:
    inner, heads = shape.n_inner, shape.n_inner // _MAMBA_HEAD
    convolved = inner + 2 * shape.d_state
    return {
        **_norm("attn_norm", shape.n_embd, False),
        "ssm_in.weight": (inner + convolved + heads, shape.n_embd),
        "ssm_conv1d.weight": (convolved, _D_CONV),
        "ssm_conv1d.bias": (convolved,),
        "ssm_dt.bias": (heads,),
        "ssm_a": (heads, 1),
        "ssm_d": (heads, 1),
        "ssm_norm.weight": (1, inner),
        "ssm_out.weight": (shape.n_embd, inner),
    }


def _linear(name: str, n_out: int, n_in: int, biased: bool) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (n_out, n_in), **({f"{name}.bias": (n_out,)} if biased else {})}


def _norm(name: str, width: int, biased: bool) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (width,), **({f"{name}.bias": (width,)} if biased else {})}


def _attention(shape: Shape) -> dict[str, tuple[int, ...]]:
    width, biased = shape.n_embd, shape.biased
    q, kv = shape.n_head * shape.head_width, shape.n_head_kv * shape.head_width
    shapes = {
        **_norm("attn_norm", width, biased),
        **_linear("attn_q", q, width, biased),
        **_linear("attn_k", kv, width, biased),
        **_linear("attn_v", kv, width, biased),
        **_linear("attn_output", width, q, biased),
    }
    if shape.head_norms:
        shapes |= {"attn_q_norm.weight": (shape.head_width,), "attn_k_norm.weight": (shape.head_width,)}
    return shapes


def _ffn(shape: Shape) -> dict[str, tuple[int, ...]]:
    width, hidden, biased = shape.n_embd, shape.n_ff, shape.biased
    return {
        **({} if biased else _norm("ffn_norm", width, False)),
        **(_linear("ffn_gate", hidden, width, biased) if shape.gated else {}),
        **_linear("ffn_up", hidden, width, biased),
        **_linear("ffn_down", width, hidden, biased),
    }


def _experts(shape: Shape) -> dict[str, tuple[int, ...]]:
    count, width, hidden = shape.n_expert, shape.n_embd, shape.n_ff
    return {
        **_norm("ffn_norm", width, False),
        "ffn_gate_inp.weight": (count, width),
        "ffn_gate_exps.weight": (count, hidden, width),
        "ffn_up_exps.weight": (count, hidden, width),
        "ffn_down_exps.weight": (count, width, hidden),
    }
