"""What no golden exercises, against float64 NumPy from the papers: parallel residuals, soft caps, rounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graphml_models import falcon, gptneox, nanbeige
from graphml_models._samples import HEAD_NORMS, POST_NORMS, SECTIONS, transformer

from graphml.loading.architecture import SampleModel
from tests.golden import nmse
from tests.models import paper
from tests.models.paper import (
    EPS,
    TOKENS,
    Weights,
    Wide,
    attention,
    gelu,
    heads,
    layer_norm,
    plain_frequencies,
)

LIMIT = 1e-10
on_both = pytest.mark.parametrize("backend", ["reference", "cpu"])


def named(models: list[SampleModel], name: str) -> SampleModel:
    return next(model for model in models if model.name == name)


def fused_heads(h: Wide, part: Weights, n_head: int, n_head_kv: int) -> tuple[Wide, Wide, Wide]:
    """Queries, keys and values of one matrix that holds all queries, then all keys, then all values."""
    qkv = h @ part["attn_qkv.weight"].T + part.get("attn_qkv.bias", 0.0)
    width = qkv.shape[1] // (n_head + 2 * n_head_kv)
    q, k, v = np.split(qkv, [n_head * width, (n_head + n_head_kv) * width], axis=1)
    return heads(q, n_head), heads(k, n_head_kv), heads(v, n_head_kv)


def layers(w: Weights) -> list[Weights]:
    """The tensors of each of two layers."""
    return [{name.removeprefix(f"blk.{i}."): value for name, value in w.items()} for i in range(2)]


def plain_ffn(h: Wide, part: Weights) -> Wide:
    """GELU between two matrices, with biases where there are any."""
    up = gelu(h @ part["ffn_up.weight"].T + part.get("ffn_up.bias", 0.0))
    return up @ part["ffn_down.weight"].T + part.get("ffn_down.bias", 0.0)


def gptneox_logits(w: Weights, parallel: bool) -> Wide:
    """Black et al. 2022, arXiv:2204.06745: x + attention(norm(x)) + ffn(other norm(x)), or in turn.

    The first 8 of a head's 16 dimensions rotate.
    """
    x = w["token_embd.weight"][TOKENS]
    frequencies = plain_frequencies(10000.0, 8)
    for part in layers(w):
        q, k, v = fused_heads(layer_norm(x, part, "attn_norm"), part, 4, 4)
        q, k = (paper.rotated(one, frequencies, "neox") for one in (q, k))
        attended = attention(q, k, v, 0.25) @ part["attn_output.weight"].T + part["attn_output.bias"]
        if parallel:
            x = x + attended + plain_ffn(layer_norm(x, part, "ffn_norm"), part)
        else:
            x = x + attended
            x = x + plain_ffn(layer_norm(x, part, "ffn_norm"), part)
    return np.asarray(layer_norm(x, w, "output_norm") @ w["output.weight"].T)


@on_both
@pytest.mark.parametrize("parallel", [True, False])
def test_gptneox(parallel: bool, backend: str, tmp_path: Path) -> None:
    model = named(gptneox.sample("gptneox"), "parallel" if parallel else "sequential")
    tensors = paper.random_weights(model)
    got = paper.logits(tmp_path, backend, "gptneox", model.metadata, tensors)
    assert nmse(got, gptneox_logits(paper.wide(tensors), parallel)) < LIMIT
    assert nmse(got, gptneox_logits(paper.wide(tensors), not parallel)) > 1e-4


def falcon_logits(w: Weights, own_norm: bool) -> Wide:
    """Almazrouei et al. 2023, arXiv:2311.16867: x + attention(norm(x)) + ffn(norm(x)).

    In the 40B model each has a norm of its own, and there are several key-value heads.
    """
    x = w["token_embd.weight"][TOKENS]
    frequencies = plain_frequencies(10000.0, 16)
    for part in layers(w):
        h = layer_norm(x, part, "attn_norm")
        q, k, v = fused_heads(layer_norm(x, part, "attn_norm_2") if own_norm else h, part, 4, 2)
        q, k = (paper.rotated(one, frequencies, "neox") for one in (q, k))
        x = x + attention(q, k, v, 0.25) @ part["attn_output.weight"].T + plain_ffn(h, part)
    return np.asarray(layer_norm(x, w, "output_norm") @ w["output.weight"].T)


@on_both
def test_falcon_40b(backend: str, tmp_path: Path) -> None:
    model = named(falcon.sample("falcon"), "large")
    tensors = paper.random_weights(model)
    got = paper.logits(tmp_path, backend, "falcon", model.metadata, tensors)
    assert nmse(got, falcon_logits(paper.wide(tensors), own_norm=True)) < LIMIT
    assert nmse(got, falcon_logits(paper.wide(tensors), own_norm=False)) > 1e-4


def gemma2_logits(w: Weights, score_cap: float, logit_cap: float) -> Wide:
    """Gemma Team 2024, arXiv:2408.00118: norms around the blocks, GELU gates, cap * tanh(x / cap)."""

    def norm(x: Wide, part: Weights, name: str) -> Wide:
        return paper.rms_norm(x, part[f"{name}.weight"])

    x = w["token_embd.weight"][TOKENS] * 8.0
    frequencies = plain_frequencies(10000.0, 16)
    for part in layers(w):
        h = norm(x, part, "attn_norm")
        q, k, v = (heads(h @ part[f"attn_{name}.weight"].T, n) for name, n in (("q", 4), ("k", 2), ("v", 2)))
        q, k = (paper.rotated(one, frequencies, "neox") for one in (q, k))
        h = attention(q, k, v, 0.25, score_cap) @ part["attn_output.weight"].T
        x = x + norm(h, part, "post_attention_norm")
        h = norm(x, part, "ffn_norm")
        h = (gelu(h @ part["ffn_gate.weight"].T) * (h @ part["ffn_up.weight"].T)) @ part["ffn_down.weight"].T
        x = x + norm(h, part, "post_ffw_norm")
    y = norm(x, w, "output_norm") @ w["token_embd.weight"].T
    return np.asarray(logit_cap * np.tanh(y / logit_cap) if logit_cap else y)


@on_both
@pytest.mark.parametrize(("score_cap", "logit_cap"), [(0.5, 3.0), (0.5, 0.0), (0.0, 3.0)])
def test_soft_caps(score_cap: float, logit_cap: float, backend: str, tmp_path: Path) -> None:
    """Caps low enough to matter; 0 stands for none."""
    keys = {"attn_logit_softcapping": score_cap, "final_logit_softcapping": logit_cap}
    model = transformer("gemma2", tied=True, metadata=keys, layer=POST_NORMS)
    tensors = paper.random_weights(model)
    got = paper.logits(tmp_path, backend, "gemma2", model.metadata, tensors)
    w = paper.wide(tensors)
    assert nmse(got, gemma2_logits(w, score_cap, logit_cap)) < LIMIT
    for other in ((0.0, logit_cap), (score_cap, 0.0)):
        if other != (score_cap, logit_cap):
            assert nmse(got, gemma2_logits(w, *other)) > 1e-4


@on_both
def test_queries_keys_and_values_of_one_matrix(backend: str, tmp_path: Path) -> None:
    """A llama of two key-value heads whose file holds them together."""
    fused = {"attn_qkv.weight": (128, 64)}
    without = tuple(f"attn_{name}.weight" for name in "qkv")
    model = transformer("llama", layer=fused, without=without)
    tensors = paper.random_weights(model)
    w = dict(paper.wide(tensors))
    for i in range(2):
        parts = np.split(w[f"blk.{i}.attn_qkv.weight"], [64, 96])
        w |= {f"blk.{i}.attn_{name}.weight": part for name, part in zip("qkv", parts, strict=True)}
    got = paper.logits(tmp_path, backend, "llama", model.metadata, tensors)
    assert nmse(got, paper.llama(w, plain_frequencies(10000.0, 16))) < LIMIT


@on_both
@pytest.mark.parametrize("name", ["normed", "straight"])
def test_nanbeige_runs_through_its_layers_again(name: str, backend: str, tmp_path: Path) -> None:
    model = named(nanbeige.sample("nanbeige"), name)
    tensors = paper.random_weights(model)
    got = paper.logits(tmp_path, backend, "nanbeige", model.metadata, tensors)
    w = dict(paper.wide(tensors))
    w.setdefault("output.weight", w["token_embd.weight"])
    rounds = 3 if name == "normed" else 2

    def wanted(**kind: Any) -> Wide:
        return paper.llama(w, plain_frequencies(10000.0, 16), **kind)

    assert nmse(got, wanted(rounds=rounds, norm_between=name == "normed")) < LIMIT
    assert nmse(got, wanted(rounds=rounds, norm_between=name != "normed")) > 1e-4
    assert nmse(got, wanted()) > 1e-4


@on_both
def test_qwen3tts_answers_in_the_last_ids_alone(backend: str, tmp_path: Path) -> None:
    """48 codes for 80 ids, as qwen3vl says with a matrix for all ids."""
    model = transformer("qwen3tts", layer=HEAD_NORMS, top={"output.weight": (48, 64)}, metadata=SECTIONS)
    tensors = paper.random_weights(model)
    got = paper.logits(tmp_path, backend, "qwen3tts", model.metadata, tensors)
    assert got.shape == (len(TOKENS), 80)
    assert np.isneginf(got[:, :32]).all()
    tensors["output.weight"] = np.concatenate([np.zeros((32, 64), np.float32), tensors["output.weight"]])
    metadata = {key.replace("qwen3tts", "qwen3vl"): value for key, value in model.metadata.items()}
    wanted = paper.logits(tmp_path, backend, "qwen3vl", metadata, tensors)
    assert nmse(got[:, 32:], wanted[:, 32:]) < LIMIT


def test_epsilon_is_the_samples() -> None:
    """The papers' decoders and the samples must have the same one."""
    assert transformer("llama").metadata["llama.attention.layer_norm_rms_epsilon"] == EPS
