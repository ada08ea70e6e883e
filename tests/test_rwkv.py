"""RWKV-6 and RWKV-7 against their papers' recurrences, in float64 NumPy, token by token.

Peng et al. 2024 (arXiv:2404.05892) and 2025 (arXiv:2503.14456); matrices have a row for each output.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from graphml.runtime.programs.load_options import LoadOptions
from graphml.runtime.programs.open_executor import open_executor
from tests import golden
from tests.golden import nmse
from tests.sample_models import MODELS, write_model
from tests.test_architectures import Sequence

Row = NDArray[np.float64]
TOKENS = np.random.default_rng(1).integers(0, 80, 24)
HEADS, WIDTH = 4, 64
NAMES = sorted(name for name, (architecture, _) in MODELS.items() if architecture in ("rwkv6", "rwkv7"))


class Weights:
    """The tensors of a layer, or with an empty prefix of the model, in float64."""

    def __init__(self, shapes: Any, prefix: str = "") -> None:
        self.shapes, self.prefix = shapes, prefix

    def __call__(self, name: str) -> Row:
        full = f"{self.prefix}{name}" if name.endswith(".bias") else f"{self.prefix}{name}.weight"
        return golden.weights(full, self.shapes[full][::-1], seed=7).astype(np.float64)

    def has(self, name: str) -> bool:
        return f"{self.prefix}{name}.weight" in self.shapes


def sigmoid(x: Row) -> Row:
    return np.asarray(1 / (1 + np.exp(-x)))


def norm(x: Row, weight: Row, bias: Row, eps: float = 1e-5) -> Row:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps) * weight + bias


def heads(x: Row) -> Row:
    return x.reshape(HEADS, -1)


def normed_heads(w: Weights, y: Row) -> Row:
    ones = np.ones(1)
    return norm(y, ones, 0 * ones, 64e-5).reshape(-1) * w("time_mix_ln") + w("time_mix_ln.bias")


def sixth(w: Weights, x: Row, before: Row, memory: Row, first: list[Row]) -> Row:
    """Time mixing of RWKV-6, equations 14 to 20; memory [N, key, value]."""
    ahead = before - x
    low = np.tanh(w("time_mix_w1") @ (x + ahead * w("time_mix_lerp_x").reshape(-1))).reshape(5, -1)
    mixed = {}
    for i, what in enumerate("wkvrg"):
        if w.has("time_mix_lerp_fused"):
            share = w("time_mix_lerp_fused").reshape(5, -1)[i]
        else:
            share = w(f"time_mix_lerp_{what}").reshape(-1)
        mixed[what] = x + ahead * (share + w("time_mix_w2")[i] @ low[i])
    r, k, v = (
        heads(w(f"time_mix_{name}") @ mixed[what])
        for what, name in (("r", "receptance"), ("k", "key"), ("v", "value"))
    )
    gate = w("time_mix_gate") @ mixed["g"]
    rate = w("time_mix_decay") + w("time_mix_decay_w2") @ np.tanh(w("time_mix_decay_w1") @ mixed["w"])
    now = k[:, :, None] * v[:, None, :]
    y = np.einsum("nk,nkv->nv", r, memory + w("time_mix_first")[:, :, None] * now)
    memory[...] = heads(np.exp(-np.exp(rate)))[:, :, None] * memory + now
    return w("time_mix_output") @ (normed_heads(w, y) * gate * sigmoid(gate))


def seventh(w: Weights, x: Row, before: Row, memory: Row, first: list[Row]) -> Row:
    """Time mixing of RWKV-7, section 4; memory [N, value, key]; first: the first layer's value."""
    shares = w("time_mix_lerp_fused").reshape(-1, WIDTH)
    mixed = {what: x + (before - x) * share for what, share in zip("rwkvag", shares, strict=False)}

    def low(what: str, bend: Callable[[Row], Row] = lambda row: row) -> Row:
        return w(f"time_mix_{what}0") + w(f"time_mix_{what}2") @ bend(w(f"time_mix_{what}1") @ mixed[what])

    r, k, v = (
        w(f"time_mix_{name}") @ mixed[what]
        for what, name in (("r", "receptance"), ("k", "key"), ("v", "value"))
    )
    decay = np.exp(-np.exp(-0.5) * sigmoid(low("w", np.tanh)))
    rate = sigmoid(low("a"))
    if first:
        v = v + (first[0] - v) * sigmoid(low("v"))
    else:
        first.append(v)
    removed = heads(k * w("time_mix_k_k"))
    removed = removed / np.linalg.norm(removed, axis=-1, keepdims=True)
    k = k * (1 + (rate - 1) * w("time_mix_k_a"))
    r, k, v, decay, rate = map(heads, (r, k, v, decay, rate))
    for n in range(HEADS):
        forgetting = np.diag(decay[n]) - np.outer(removed[n], rate[n] * removed[n])
        memory[n] = memory[n] @ forgetting + np.outer(v[n], k[n])
    y = normed_heads(w, np.einsum("nvk,nk->nv", memory, r))
    y = y + ((r * k * heads(w("time_mix_r_k"))).sum(-1, keepdims=True) * v).reshape(-1)
    if w.has("time_mix_g1"):
        y = y * (w("time_mix_g2") @ sigmoid(w("time_mix_g1") @ mixed["g"]))
    return w("time_mix_output") @ y


def channel_mix(w: Weights, x: Row, before: Row) -> Row:
    def mixed(what: str) -> Row:
        return x + (before - x) * w(f"channel_mix_lerp_{what}").reshape(-1)

    y = w("channel_mix_value") @ np.maximum(w("channel_mix_key") @ mixed("k"), 0) ** 2
    if w.has("channel_mix_receptance"):
        y = y * sigmoid(w("channel_mix_receptance") @ mixed("r"))
    return np.asarray(y)


def written_out(name: str) -> Row:
    """Logits after every token."""
    architecture, model = MODELS[name]
    top = Weights(model.tensors)
    layers = [Weights(model.tensors, f"blk.{i}.") for i in range(2)]
    halved = model.metadata.get(f"{architecture}.rescale_every_n_layers", 0)
    memories = np.zeros((2, HEADS, WIDTH // HEADS, WIDTH // HEADS))
    before = np.zeros((2, 2, WIDTH))
    time_mix = sixth if architecture == "rwkv6" else seventh
    logits = []
    for token in TOKENS:
        x = norm(top("token_embd")[token], top("token_embd_norm"), top("token_embd_norm.bias"))
        first: list[Row] = []
        for i, w in enumerate(layers):
            h = norm(x, w("attn_norm"), w("attn_norm.bias"))
            x = x + time_mix(w, h, before[i, 0], memories[i], first)
            before[i, 0] = h
            h = norm(x, w("attn_norm_2"), w("attn_norm_2.bias"))
            x = x + channel_mix(w, h, before[i, 1])
            before[i, 1] = h
            if halved:
                x = x / 2
        logits.append(top("output") @ norm(x, top("output_norm"), top("output_norm.bias")))
    return np.array(logits)


@pytest.fixture(scope="module", params=NAMES)
def told(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Row]:
    name: str = request.param
    path = write_model(tmp_path_factory.mktemp("rwkv") / f"{name}.gguf", *MODELS[name])
    return path, written_out(name)


@pytest.mark.model
@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("piece", [24, 5, 1])
def test_it_is_the_recurrence_of_the_paper(told: tuple[Path, Row], backend: str, piece: int) -> None:
    path, wanted = told
    executor = open_executor(path, LoadOptions(backend, threads=2, n_batch=24))
    assert nmse(Sequence(executor).feed(TOKENS, piece), wanted) < 1e-10
    executor.close()


def test_there_are_both() -> None:
    assert {MODELS[name][0] for name in NAMES} == {"rwkv6", "rwkv7"}
