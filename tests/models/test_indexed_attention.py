"""dots3note against float64 NumPy from the papers: an index of tokens, windows, experts, gated heads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from graphml_models import dots3note

from tests.golden import nmse
from tests.models import paper
from tests.models.paper import TOKENS, Weights, Wide, heads, plain_frequencies, rms_norm, rotated, silu

N_ROT, N_INDEX, WINDOW = 8, 3, 20
AGE = np.arange(len(TOKENS))[:, None] - np.arange(len(TOKENS))  # of each token, seen from each


def sigmoid(x: Wide) -> Wide:
    return np.asarray(1.0 / (1.0 + np.exp(-x)))


def chosen(x: Wide, narrow: Wide, part: Weights, count: int) -> Wide:
    """Which tokens each sees: the `count` best by a weighted sum over small heads, of products above 0.

    DeepSeek-V3.2, 2025, arXiv:2512.02556. Of equal ones the earlier.
    """
    frequencies = plain_frequencies(10000.0, N_ROT)
    q = rotated(heads(narrow @ part["indexer.attn_q_b.weight"].T, N_INDEX), frequencies, "neox")
    k = x @ part["indexer.attn_k.weight"].T
    k = (k - k.mean(axis=1, keepdims=True)) / np.sqrt(k.var(axis=1, keepdims=True) + 1e-6)
    k = k * part["indexer.k_norm.weight"] + part["indexer.k_norm.bias"]
    k = rotated(k[:, None], frequencies, "neox")[:, 0]
    products = np.maximum(np.einsum("sjh,th->sjt", q, k), 0.0)
    scores = np.einsum("sj,sjt->st", x @ part["indexer.proj.weight"].T, products)
    scores[AGE < 0] = -np.inf
    ranks = np.argsort(np.argsort(-scores, axis=1, kind="stable"), axis=1)
    return np.asarray((ranks < count) & (AGE >= 0))


def attention(x: Wide, part: Weights, n_head: int, base: float, count: int) -> Wide:
    """Latent attention with every head's keys and values made out; count: 0 for a window instead."""
    narrow = rms_norm(x @ part["attn_q_a.weight"].T, part["attn_q_a_norm.weight"])
    q = heads(narrow @ part["attn_q_b.weight"].T, n_head)
    latent, turning = np.split(x @ part["attn_kv_a_mqa.weight"].T, [-N_ROT], axis=1)
    latent = rms_norm(latent, part["attn_kv_a_norm.weight"])
    turning = rms_norm(turning, part["attn_k_norm.weight"])[:, None].repeat(n_head, axis=1)
    frequencies = plain_frequencies(base, N_ROT)
    q = np.concatenate([q[..., :-N_ROT], rotated(q[..., -N_ROT:], frequencies, "norm")], axis=2)
    k = np.einsum("tr,nri->tni", latent, part["attn_k_b.weight"])
    k = np.concatenate([k, rotated(turning, frequencies, "norm")], axis=2)
    v = np.einsum("tr,nvr->tnv", latent, part["attn_v_b.weight"])
    seen = chosen(x, narrow, part, count) if count else (AGE >= 0) & (AGE < WINDOW)
    weights = np.exp(np.einsum("snw,tnw->nst", q, k) * q.shape[2] ** -0.5) * seen
    y = np.einsum("nst,tnv->snv", weights / weights.sum(axis=2, keepdims=True), v)
    y = y * sigmoid(x @ part["attn_gate.weight"].T)[:, :, None]
    return np.asarray(y.reshape(len(x), -1) @ part["attn_output.weight"].T)


def swiglu(x: Wide, gate: Wide, up: Wide, down: Wide) -> Wide:
    return np.asarray((silu(x @ gate.T) * (x @ up.T)) @ down.T)


def experts(x: Wide, part: Weights) -> Wide:
    """Two of five by sigmoid and bias (DeepSeek-V3, arXiv:2412.19437), and one that all tokens share."""
    names = ("gate", "up", "down")
    y = swiglu(x, *(part[f"ffn_{name}_shexp.weight"] for name in names))
    scores = sigmoid(x @ part["ffn_gate_inp.weight"].T)
    for t, best in enumerate(np.argsort(-(scores + part["exp_probs_b.bias"]), axis=1)[:, :2]):
        for one in best:
            weight = 2.5 * scores[t, one] / scores[t, best].sum()
            y[t] += weight * swiglu(x[t], *(part[f"ffn_{name}_exps.weight"][one] for name in names))
    return y


def logits(w: Weights, count: int) -> Wide:
    x = w["token_embd.weight"][TOKENS]
    for i in range(2):
        part = {name.removeprefix(f"blk.{i}."): value for name, value in w.items()}
        h = rms_norm(x, part["attn_norm.weight"])
        x = x + (attention(h, part, 2, 500.0, 0) if i else attention(h, part, 4, 10000.0, count))
        h = rms_norm(x, part["ffn_norm.weight"])
        plain = () if i else (part[f"ffn_{name}.weight"] for name in ("gate", "up", "down"))
        x = x + (experts(h, part) if i else swiglu(h, *plain))
    return np.asarray(rms_norm(x, w["output_norm.weight"]) @ w["output.weight"].T)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_dots3note(backend: str, tmp_path: Path) -> None:
    (model,) = dots3note.sample("dots3note")
    tensors = paper.random_weights(model)
    got = paper.logits(tmp_path, backend, "dots3note", model.metadata, tensors)
    w = paper.wide(tensors)
    assert nmse(got, logits(w, 20)) < 1e-10
    assert nmse(got, logits(w, 19)) > 1e-6
    assert nmse(got, logits(w, len(TOKENS))) > 1e-4
