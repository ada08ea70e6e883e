"""Folders of encoders whose classes transformers does not have, against float64 NumPy after their code.

The order of rows and the formulas are those of `jinaai/jina-bert-implementation` and `chandar-lab/NeoBERT`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphml
from graphml.errors import ArchitectureError, GraphmlError
from tests.encoder_records import TOKENS, write
from tests.folder_records import values
from tests.golden import nmse

LIMIT = 1e-10
HEADS, WIDTH, HEAD, ROWS, LAYERS = 4, 32, 8, 60, 3
Numbers = np.ndarray[Any, np.dtype[np.float64]]
Shapes = dict[str, list[int]]
JINA = {
    "model_type": "bert", "position_embedding_type": "alibi", "feed_forward_type": "geglu",
    "hidden_act": "gelu", "hidden_size": WIDTH, "intermediate_size": 48, "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "max_position_embeddings": 64, "type_vocab_size": 2, "vocab_size": ROWS, "layer_norm_eps": 1e-12,
    "pad_token_id": 0, "emb_pooler": "mean", "attn_implementation": "torch", "model_max_length": 64,
}  # fmt: skip
NEO = {
    "model_type": "neobert", "hidden_size": WIDTH, "intermediate_size": 50, "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS, "norm_eps": 1e-5, "max_length": 64, "vocab_size": ROWS, "pad_token_id": 0,
    "dim_head": HEAD, "embedding_init_range": 0.02, "decoder_init_range": 0.02, "kwargs": {},
}  # fmt: skip
NEO_FF = 40  # two thirds of 50 are 33, of which the next multiple of 8 is 40
erf = np.vectorize(math.erf)


def jina_shapes() -> Shapes:
    shapes: Shapes = {
        "embeddings.word_embeddings.weight": [ROWS, WIDTH],
        "embeddings.token_type_embeddings.weight": [2, WIDTH],
    }
    vectors = ["embeddings.LayerNorm"]
    for layer in (f"encoder.layer.{i}." for i in range(LAYERS)):
        parts = [f"attention.self.{of}" for of in ("query", "key", "value")] + ["attention.output.dense"]
        shapes |= {f"{layer}{part}.weight": [WIDTH, WIDTH] for part in parts}
        shapes |= {f"{layer}{part}.bias": [WIDTH] for part in parts}
        shapes |= {f"{layer}mlp.gated_layers.weight": [96, WIDTH], f"{layer}mlp.wo.weight": [WIDTH, 48]}
        shapes[f"{layer}mlp.wo.bias"] = [WIDTH]
        vectors += [f"{layer}attention.output.LayerNorm", f"{layer}mlp.layernorm"]
    return shapes | {f"{name}.{kind}": [WIDTH] for name in vectors for kind in ("weight", "bias")}


def neo_shapes() -> Shapes:
    shapes: Shapes = {"model.encoder.weight": [ROWS, WIDTH], "model.layer_norm.weight": [WIDTH]}
    for layer in (f"model.transformer_encoder.{i}." for i in range(LAYERS)):
        shapes |= {
            f"{layer}qkv.weight": [3 * WIDTH, WIDTH], f"{layer}wo.weight": [WIDTH, WIDTH],
            f"{layer}attention_norm.weight": [WIDTH], f"{layer}ffn_norm.weight": [WIDTH],
            f"{layer}ffn.w12.weight": [2 * NEO_FF, WIDTH], f"{layer}ffn.w3.weight": [WIDTH, NEO_FF],
        }  # fmt: skip
    return shapes | {"decoder.weight": [ROWS, WIDTH], "decoder.bias": [ROWS]}


def tensors(shapes: Shapes) -> dict[str, Numbers]:
    return {name: values(name, tuple(shape)).astype(np.float64) for name, shape in shapes.items()}


def attended(q_THD: Numbers, k_THD: Numbers, v_THD: Numbers, bias: Numbers | float = 0.0) -> Numbers:
    scores = np.einsum("ihd,jhd->hij", q_THD, k_THD) / math.sqrt(HEAD) + bias
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("hij,jhd->ihd", scores / scores.sum(-1, keepdims=True), v_THD).reshape(-1, WIDTH)


def jina_rows(w: Mapping[str, Numbers], ids: Any) -> Numbers:
    def norm(x: Numbers, name: str) -> Numbers:
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-12)
        return x * w[f"{name}.weight"] + w[f"{name}.bias"]

    def linear(x: Numbers, name: str) -> Numbers:
        return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0)

    x = w["embeddings.word_embeddings.weight"][ids] + w["embeddings.token_type_embeddings.weight"][0]
    x = norm(x, "embeddings.LayerNorm")
    slopes = 2.0 ** (-8.0 * np.arange(1, HEADS + 1) / HEADS)
    bias = -slopes[:, None, None] * np.abs(np.subtract.outer(np.arange(len(ids)), np.arange(len(ids))))
    for layer in (f"encoder.layer.{i}." for i in range(LAYERS)):
        q, k, v = (
            linear(x, f"{layer}attention.self.{of}").reshape(-1, HEADS, HEAD)
            for of in ("query", "key", "value")
        )
        h = linear(attended(q, k, v, bias), f"{layer}attention.output.dense")
        x = norm(h + x, f"{layer}attention.output.LayerNorm")
        gate, up = np.split(linear(x, f"{layer}mlp.gated_layers"), 2, axis=1)
        h = linear(0.5 * gate * (1 + erf(gate / math.sqrt(2))) * up, f"{layer}mlp.wo")
        x = norm(h + x, f"{layer}mlp.layernorm")
    return x


def neo_rows(w: Mapping[str, Numbers], ids: Any) -> Numbers:
    def norm(x: Numbers, name: str) -> Numbers:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * w[f"model.{name}.weight"]

    def turned(x_THD: Numbers) -> Numbers:
        angles = np.arange(len(ids))[:, None] * 10000.0 ** (-np.arange(HEAD // 2) / (HEAD // 2))
        pairs = x_THD[..., 0::2] + 1j * x_THD[..., 1::2]
        pairs = pairs * np.exp(1j * angles)[:, None]
        return np.stack([pairs.real, pairs.imag], -1).reshape(x_THD.shape)

    x = w["model.encoder.weight"][ids]
    for layer in (f"transformer_encoder.{i}." for i in range(LAYERS)):
        h = norm(x, f"{layer}attention_norm") @ w[f"model.{layer}qkv.weight"].T
        q, k, v = np.split(h.reshape(-1, HEADS, 3 * HEAD), 3, axis=2)
        x = x + attended(turned(q), turned(k), v) @ w[f"model.{layer}wo.weight"].T
        gate, up = np.split(norm(x, f"{layer}ffn_norm") @ w[f"model.{layer}ffn.w12.weight"].T, 2, axis=1)
        x = x + (gate / (1 + np.exp(-gate)) * up) @ w[f"model.{layer}ffn.w3.weight"].T
    return norm(x, "layer_norm")


KINDS = {"jina_bert_v2": (JINA, jina_shapes, jina_rows), "neobert": (NEO, neo_shapes, neo_rows)}


@pytest.mark.parametrize("name", KINDS)
def test_rows_are_those_of_the_authors_code(name: str, tmp_path: Path) -> None:
    config, shapes, rows = KINDS[name]
    path = write(tmp_path / name, {"config.json": config}, shapes())
    with graphml.load(path, "reference", kv="f32", quant="fp32") as model:
        assert nmse(model.embed_ids([TOKENS.tolist()], "none")[0], rows(tensors(shapes()), TOKENS)) <= LIMIT


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("jina_bert_v2", {"feed_forward_type": "reglu"}, "feed_forward_type"),
    ("jina_bert_v2", {"hidden_act": "relu"}, "hidden_act"),
    ("neobert", {"hidden_act": "gelu"}, "hidden_act"),
    ("neobert", {"rope": False}, "rope"),
    ("neobert", {"dim_head": 7}, "dim_head is '7'"),
    ("neobert", {"rms_norm": False}, "rms_norm"),
]


@pytest.mark.parametrize(("name", "fields", "message"), WRONG)
def test_what_they_do_not_compute_is_refused(
    name: str, fields: dict[str, Any], message: str, tmp_path: Path
) -> None:
    config, shapes, _ = KINDS[name]
    path = write(tmp_path / name, {"config.json": config | fields}, shapes())
    with pytest.raises(ArchitectureError, match=message):
        graphml.load(path, "reference")


def test_jinas_model_for_code_is_refused_by_its_tensors(tmp_path: Path) -> None:
    shapes = {name.replace("gated_layers", "up_gated_layer"): shape for name, shape in jina_shapes().items()}
    path = write(tmp_path / "code", {"config.json": JINA}, shapes)
    with pytest.raises(GraphmlError, match="up_gated_layer"):
        graphml.load(path, "reference")
