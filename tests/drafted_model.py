"""A tiny llama that others draft for, as a file for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tests import golden
from tests.golden import Floats

LAYERS, N_VOCAB, WIDTH = 4, 128, 40


def model_tensors(width: int = WIDTH, n_vocab: int = N_VOCAB) -> dict[str, tuple[int, ...]]:
    """Of a llama, in NumPy order."""
    layer = {
        **{f"attn_{part}": (width, width) for part in ("q", "k", "v", "output")},
        **{f"ffn_{part}": (64, width) for part in ("gate", "up")},
        **{f"{part}_norm": (width,) for part in ("attn", "ffn")},
        "ffn_down": (width, 64),
    }
    shapes = {f"blk.{i}.{name}.weight": shape for i in range(LAYERS) for name, shape in layer.items()}
    tables = dict.fromkeys(("token_embd.weight", "output.weight"), (n_vocab, width))
    return {**tables, "output_norm.weight": (width,), **shapes}


def write_model(path: Path, change: Any = dict, width: int = WIDTH, n_vocab: int = N_VOCAB) -> Path:
    sizes: dict[str, tuple[str, Any]] = {
        f"llama.{key}": ("UINT32", value)
        for key, value in {
            "context_length": 256, "embedding_length": width, "block_count": LAYERS, "vocab_size": n_vocab,
            "feed_forward_length": 64, "attention.head_count": 4,
        }.items()
    }  # fmt: skip
    sizes["llama.attention.layer_norm_rms_epsilon"] = ("FLOAT32", 1e-5)
    shapes = model_tensors(width, n_vocab)
    tensors = {name: golden.weights(name, shape[::-1], 3) for name, shape in shapes.items()}
    return golden.write_gguf(path, "llama", sizes, change(tensors))


def as_successors(tensors: dict[str, Floats]) -> dict[str, Floats]:
    """A model whose next id follows from its last one alone: that of the id before it in a cycle."""
    n = len(tensors["token_embd.weight"])
    for name, array in tensors.items():
        if name.endswith(("attn_output.weight", "ffn_down.weight")):
            array[:] = 0
    tensors["token_embd.weight"] = np.eye(n, dtype=np.float32)
    tensors["output.weight"] = 4 * np.roll(np.eye(n, dtype=np.float32), 1, axis=0)
    return tensors
