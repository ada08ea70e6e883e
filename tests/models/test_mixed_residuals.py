"""glm5-next against float64 NumPy from the papers: mixed residuals, Kimi delta attention, limited gates."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from graphml_models import glm5_next

from tests.golden import nmse
from tests.models import paper
from tests.models.paper import TOKENS, Weights, Wide, attention, heads, rms_norm, silu

EPS = 1e-6


def sigmoid(x: Wide) -> Wide:
    return np.asarray(1.0 / (1.0 + np.exp(-x)))


def mixing(x_TSD: Wide, part: Weights, block: str) -> tuple[Wide, Wide, Wide]:
    """Weights to read, to write, and from old streams to new [T, from, to] (Xie 2025, arXiv:2512.24880)."""
    n = x_TSD.shape[1]
    flat = rms_norm(x_TSD.reshape(len(x_TSD), -1), np.ones(1))
    read, write, mix = np.split(flat @ part[f"{block}_fn.weight"].T, [n, 2 * n], axis=1)
    scales, bases = part[f"{block}_scale.weight"], np.split(part[f"{block}_base.weight"], [n, 2 * n])
    read, write = (sigmoid(one * scales[i] + bases[i]) for i, one in enumerate((read, write)))
    mix = np.exp(mix * scales[2] + bases[2]).reshape(-1, n, n)
    mix = mix / mix.sum(axis=2, keepdims=True) + EPS
    for axis in (1, 2, 1):  # Sinkhorn and Knopp, twice: what reaches a stream, what leaves one
        mix = mix / (mix.sum(axis=axis, keepdims=True) + EPS)
    return read + EPS, 2.0 * write, mix


def short_convolution(x: Wide, weight: Wide) -> Wide:
    padded = np.concatenate([np.zeros((3, x.shape[1])), x])
    return silu(np.sum([padded[i : i + len(x)] * weight[:, 0, i] for i in range(4)], axis=0))


def delta(x: Wide, part: Weights, lowest: float) -> Wide:
    """Kimi Team 2025, arXiv:2510.26692: S = (I - beta k k^T) Diag(decay) S + beta k v^T; o = S^T q / 4."""
    q, k, v = (
        heads(short_convolution(x @ part[f"attn_{i}.weight"].T, part[f"ssm_conv1d_{i}.weight"]), 4)
        for i in "qkv"
    )
    q, k = (one / np.sqrt((one * one).sum(axis=2, keepdims=True) + EPS) for one in (q, k))
    rate = heads(x @ part["ssm_f_a.weight"].T @ part["ssm_f_b.weight"].T + part["ssm_dt.bias"], 4)
    a = part["ssm_a"][:, None]
    decay = np.exp(lowest * sigmoid(-a * rate) if lowest else a * np.log1p(np.exp(rate)))
    beta = sigmoid(x @ part["ssm_beta.weight"].T)
    y = np.zeros_like(v)
    for head in range(4):
        state = np.zeros((16, 16))
        for t in range(len(x)):
            key = k[t, head]
            state = decay[t, head][:, None] * state
            state = state + beta[t, head] * np.outer(key, v[t, head] - state.T @ key)
            y[t, head] = state.T @ q[t, head] / 4.0
    gate = sigmoid(x @ part["ssm_g_a.weight"].T @ part["ssm_g_b.weight"].T)
    return np.asarray(rms_norm(y, part["ssm_norm.weight"]).reshape(len(x), -1) * gate)


def latent(x: Wide, part: Weights) -> Wide:
    """Latent attention with every head's keys and values made out; no positions."""
    q = heads(
        rms_norm(x @ part["attn_q_a.weight"].T, part["attn_q_a_norm.weight"]) @ part["attn_q_b.weight"].T, 4
    )
    c = rms_norm(x @ part["attn_kv_a_mqa.weight"].T, part["attn_kv_a_norm.weight"])
    k = np.einsum("tr,nri->tni", c, part["attn_k_b.weight"])
    return attention(q, k, np.einsum("tr,nvr->tnv", c, part["attn_v_b.weight"]), 20**-0.5)


def swiglu(x: Wide, part: Weights, suffix: str, limit: float, one: int | None = None) -> Wide:
    gate, up, down = (part[f"ffn_{name}{suffix}.weight"] for name in ("gate", "up", "down"))
    if one is not None:
        gate, up, down = gate[one], up[one], down[one]
    a, b = x @ gate.T, x @ up.T
    if limit:
        a, b = np.minimum(a, limit), np.clip(b, -limit, limit)
    return np.asarray((silu(a) * b) @ down.T)


def feed_forward(x: Wide, part: Weights, limit: float, shared: float) -> Wide:
    if "ffn_gate_inp.weight" not in part:
        return swiglu(x, part, "", shared)
    y = swiglu(x, part, "_shexp", shared)
    scores = sigmoid(x @ part["ffn_gate_inp.weight"].T)
    for t, best in enumerate(np.argsort(-(scores + part["exp_probs_b.bias"]), axis=1)[:, :2]):
        for one in best:
            y[t] += scores[t, one] / scores[t, best].sum() * swiglu(x[t], part, "_exps", limit, one)
    return y


def logits(w: Weights, n: int, lowest: float, limit: float, shared: float) -> Wide:
    x = w["token_embd.weight"][TOKENS][:, None].repeat(n, axis=1)
    for i in range(2):
        part = {
            name.removeprefix(f"blk.{i}."): value
            for name, value in w.items()
            if not name.startswith(f"blk.{1 - i}.")
        }
        for block in ("attn", "ffn"):
            read, write, mix = mixing(x, part, f"hc_{block}")
            h = rms_norm(np.einsum("ts,tsd->td", read, x), part[f"{block}_norm.weight"])
            if block == "ffn":
                y = feed_forward(h, part, limit, shared)
            else:
                y = (delta(h, part, lowest) if i else latent(h, part)) @ part["attn_output.weight"].T
            x = np.einsum("tse,tsd->ted", mix, x) + write[:, :, None] * y[:, None]
    return np.asarray(rms_norm(x.mean(axis=1), w["output_norm.weight"]) @ w["output.weight"].T)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize(
    ("name", "settings"), [("bounded", (2, -5.0, 0.0, 0.0)), ("free", (3, 0.0, 0.5, 0.3))]
)
def test_glm5_next(
    name: str, settings: tuple[int, float, float, float], backend: str, tmp_path: Path
) -> None:
    model = next(model for model in glm5_next.sample("glm5-next") if model.name == name)
    tensors = paper.random_weights(model)
    got = paper.logits(tmp_path, backend, "glm5-next", model.metadata, tensors)
    w = paper.wide(tensors)
    assert nmse(got, logits(w, *settings)) < 1e-10
    n, lowest, limit, shared = settings
    for other in ((n, -5.0 - lowest, limit, shared), (n, lowest, 0.7, shared), (n, lowest, limit, 0.5)):
        assert nmse(got, logits(w, *other)) > 1e-6
