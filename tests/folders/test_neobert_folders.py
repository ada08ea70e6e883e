"""Folders of NeoBERT, which transformers has no class of, against float64 NumPy of the authors' formulas."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import graphml
from graphml.errors import ArchitectureError
from tests.encoder_records import TOKENS
from tests.folder_records import values
from tests.golden import nmse

D, LAYERS, HEADS, STATED, WIDTH, EPS = 32, 3, 4, 50, 40, 1e-5
"""STATED: of feed-forwards, of which two thirds, rounded up to a multiple of 8, are WIDTH."""
CONFIG = {"model_type": "neobert", "architectures": ["NeoBERTLMHead"], "hidden_size": D,
          "dim_head": D // HEADS, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
          "intermediate_size": STATED,
          "norm_eps": EPS, "vocab_size": 60, "pad_token_id": 0, "max_length": 64, "kwargs": {},
          "embedding_init_range": 0.02, "decoder_init_range": 0.02,
          "classifier_init_range": 0.02}  # fmt: skip
SHAPES = {
    "model.encoder.weight": (60, D), "model.layer_norm.weight": (D,), "decoder.weight": (60, D),
    "decoder.bias": (60,),
    **{f"model.transformer_encoder.{i}.{name}.weight": shape for i in range(LAYERS) for name, shape in [
        ("attention_norm", (D,)), ("qkv", (3 * D, D)), ("wo", (D, D)), ("ffn_norm", (D,)),
        ("ffn.w12", (2 * WIDTH, D)), ("ffn.w3", (D, WIDTH))]},
}  # fmt: skip
Numbers = np.ndarray[Any, np.dtype[np.float64]]


def folder(path: Path, **changed: Any) -> Path:
    path.mkdir(exist_ok=True)
    fields = {key: value for key, value in {**CONFIG, **changed}.items() if value is not None}
    (path / "config.json").write_text(json.dumps(fields))
    save_file({name: values(name, shape) for name, shape in SHAPES.items()}, path / "model.safetensors")
    return path


def normed(x: Numbers, weight: Numbers) -> Numbers:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + EPS) * weight


def rotated(x: Numbers) -> Numbers:
    """Neighbours of each head, [T, head, d]."""
    width = x.shape[2]
    angle = np.arange(len(x))[:, None] * 10000.0 ** (-np.arange(0, width, 2) / width)
    turned = (x[..., 0::2] + 1j * x[..., 1::2]) * np.exp(1j * angle)[:, None]
    return np.stack([turned.real, turned.imag], -1).reshape(x.shape)


def rows(tokens: Any) -> Numbers:
    """The last hidden rows of a text."""
    weights = {name: values(name, shape).astype(np.float64) for name, shape in SHAPES.items()}
    x = weights["model.encoder.weight"][tokens]
    for i in range(LAYERS):
        w = {name: weights[f"model.transformer_encoder.{i}.{name}.weight"]
             for name in ("attention_norm", "qkv", "wo", "ffn_norm", "ffn.w12", "ffn.w3")}  # fmt: skip
        # q, k and v of one head after the other.
        qkv = (normed(x, w["attention_norm"]) @ w["qkv"].T).reshape(len(x), HEADS, 3, D // HEADS)
        q, k, v = rotated(qkv[:, :, 0]), rotated(qkv[:, :, 1]), qkv[:, :, 2]
        scores = np.exp(np.einsum("ihd,jhd->hij", q, k) / np.sqrt(D // HEADS))
        scores /= scores.sum(-1, keepdims=True)
        x = x + np.einsum("hij,jhd->ihd", scores, v).reshape(len(x), D) @ w["wo"].T
        gate, up = np.split(normed(x, w["ffn_norm"]) @ w["ffn.w12"].T, 2, axis=1)
        x = x + (gate / (1 + np.exp(-gate)) * up) @ w["ffn.w3"].T
    return normed(x, weights["model.layer_norm.weight"])


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_rows_are_those_of_the_authors_formulas(backend: str, tmp_path: Path) -> None:
    ids, wanted = TOKENS.tolist(), rows(TOKENS)
    with graphml.load(folder(tmp_path / "x"), backend, kv="f32", quant="fp32", threads=1) as model:
        assert model.executor.config.n_ctx == 64
        assert nmse(model.embed_ids([ids], "none")[0], wanted) <= 1e-10
        for pooling, pooled in (("mean", wanted.mean(0)), ("cls", wanted[0]), ("last", wanted[-1])):
            assert nmse(model.embed_ids([ids], pooling)[0][0], pooled) <= 1e-10


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"ngpt": True}, "ngpt is 'True'"), ({"rope": False}, "rope is 'False'"),
    ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"), ({"dim_head": 7}, "dim_head is '7'"),
    ({"num_attention_heads": 5, "dim_head": 6}, "are not q, k and v"),
    ({"a_new_field": 1}, "not understood.*a_new_field"),
]  # fmt: skip


@pytest.mark.parametrize(("changed", "said"), WRONG)
def test_other_fields_are_refused(changed: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ArchitectureError, match=said):
        graphml.load(folder(tmp_path / "x", **changed), "reference").close()
