"""Suggestions for wrong names: typing errors, or names that NumPy, PyTorch or ggml have."""

from __future__ import annotations

from collections.abc import Collection

from graphml.errors import similar

ELSEWHERE = {
    "matmul": "mul_mat", "mm": "mul_mat", "bmm": "mul_mat", "dot": "mul_mat", "linear": "mul_mat",
    "view": "reshape", "squeeze": "reshape", "unsqueeze": "reshape", "split_heads": "heads",
    "transpose": "permute", "T": "permute", "swapaxes": "permute", "cat": "concat", "concatenate": "concat",
    "split": "columns", "chunk": "columns", "narrow": "columns", "slice": "columns", "expand": "repeat",
    "sum": "sum_rows", "soft_max": "softmax", "log_softmax": "softmax", "abs": "absolute", "pow": "sqr",
    "square": "sqr", "rsqrt": "sqrt", "neg": "neg", "negative": "neg", "multiply": "mul", "divide": "div",
    "subtract": "sub", "clip": "clamp", "topk": "top_k", "embedding": "embed", "get_rows": "rows",
    "index_select": "rows", "take": "rows", "norm": "rms_norm", "swish": "silu", "rope_ext": "rope",
    "rotary": "rope", "attention": "attend", "flash_attn_ext": "attend", "sdpa": "attend",
    "scaled_dot_product_attention": "attend", "amax": "max_rows", "amin": "min_rows", "max": "max_rows",
    "min": "min_rows", "lt": "less", "le": "less_equal", "eq": "equal", "gt": "less", "ge": "less_equal",
    "masked_fill": "where", "to": "cast", "astype": "cast", "full": "constant", "tensor": "constant",
    **dict.fromkeys(("build", "graph", "compile", "output", "outputs", "done"), "finish"),
    "cross_attention": "attend_source", "conv1d": "ssm_conv",
}  # fmt: skip
"""Name in another library -> the builder's method for it."""


def meant(name: str, known: Collection[str]) -> str | None:
    """The known name that is probably meant; None if none is near."""
    elsewhere = ELSEWHERE.get(name)
    if elsewhere in known:
        return elsewhere
    close = similar(name, known, 1)
    return close[0] if close else None
