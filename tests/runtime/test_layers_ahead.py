"""Layers that predict further, of families whose layers differ from llama's: against their formulas.

Qwen3-Next ends with gated attention over normed heads and with experts; MiMo's first models are Qwen2's, the
second have windows, sinks and values narrower than keys. In NumPy, float64.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import gguf
import numpy as np
import pytest

import graphml
from graphml.api.engine_memory import n_blocks_for, n_checkpoints_for, window_rooms
from graphml.errors import UsageError
from graphml.runtime.blocks.drafting import StepTimes
from graphml.runtime.sessions.prediction_head import prediction_head
from graphml.sampling import SamplingParams
from tests.one_text import OneText
from tests.sample_models import MODELS, write_model

EPS = 1e-5
Weights = dict[str, np.ndarray]


def norm(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS) * w


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def swiglu(w: Weights, x: np.ndarray, kind: str = "") -> np.ndarray:
    gate = x @ w[f"ffn_gate{kind}"].T
    return (gate * sigmoid(gate) * (x @ w[f"ffn_up{kind}"].T)) @ w[f"ffn_down{kind}"].T


def experts(w: Weights, x: np.ndarray) -> np.ndarray:
    """The two likeliest of five, by shares that add up to 1, beside a shared one with a gate."""
    scores = np.exp(x @ w["ffn_gate_inp"].T)
    found = sigmoid(x @ w["ffn_gate_inp_shexp"])[:, None] * swiglu(w, x, "_shexp")
    for t, row in enumerate(scores):
        best = np.argsort(-row)[:2]
        for e in best:
            own = {f"ffn_{part}": w[f"ffn_{part}_exps"][e] for part in ("gate", "up", "down")}
            found[t] += row[e] / row[best].sum() * swiglu(own, x[t])
    return found


@dataclass(frozen=True)
class Kind:
    """What the layer of a family has; sizes are those of the samples: 4 heads of 16, 2 of keys and values."""

    feed_forward: Callable[[Weights, np.ndarray], np.ndarray] = swiglu
    ffn_norm: str = "ffn_norm"
    gated: bool = False
    n_rotated: int = 16
    base: float = 10000.0
    window: int = 1000
    value_scale: float = 1.0


FAMILIES = {
    "qwen2-ahead": Kind(),
    "qwen3next-ahead": Kind(experts, "post_attention_norm", gated=True),
    "qwen35-ahead": Kind(ffn_norm="post_attention_norm", gated=True),
    "mimo2-ahead": Kind(n_rotated=8, base=500.0, window=20, value_scale=0.7),
}


def rotated(x: np.ndarray, kind: Kind) -> np.ndarray:
    """The rope of halves, of the first elements of each head of [T, heads, H]."""
    half = kind.n_rotated // 2
    angle = np.arange(len(x))[:, None, None] * kind.base ** (-np.arange(half) / half)
    a, b = x[..., :half], x[..., half : 2 * half]
    turned = a * np.cos(angle) - b * np.sin(angle), a * np.sin(angle) + b * np.cos(angle)
    return np.concatenate([*turned, x[..., 2 * half :]], -1)


def attended(w: Weights, a: np.ndarray, kind: Kind) -> np.ndarray:
    def heads(name: str, count: int) -> np.ndarray:
        return (a @ w[f"attn_{name}"].T + w.get(f"attn_{name}.bias", 0)).reshape(len(a), count, -1)

    q, k, v = heads("q", 4), heads("k", 2), heads("v", 2)
    gate = 1.0
    if kind.gated:
        q, gate = q[..., :16], sigmoid(q[..., 16:])
        q, k = norm(q, w["attn_q_norm"]), norm(k, w["attn_k_norm"])
    q, k = rotated(q, kind), rotated(k, kind)
    k, v = (np.repeat(one, 2, axis=1) for one in (k, v))
    behind = np.arange(len(a))[:, None] - np.arange(len(a))
    hidden = np.where((behind >= 0) & (behind < kind.window), 0.0, -np.inf)
    shares = np.exp(np.einsum("qhd,khd->hqk", q, k) / 4 + hidden)
    sinks = np.exp(w["attn_sinks"])[:, None, None] if "attn_sinks" in w else 0.0
    shares = shares / (shares.sum(-1, keepdims=True) + sinks)
    y = np.einsum("hqk,khd->qhd", shares, v) * kind.value_scale * gate
    return y.reshape(len(a), -1) @ w["attn_output"].T


def in_numpy(path: Path, kind: Kind, ids: list[int], hidden: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Logits and rows behind the last norm, of all ids."""
    all_of = {one.name: np.array(one.data, np.float64) for one in gguf.GGUFReader(path).tensors}
    w = {key.removeprefix("blk.2.").removesuffix(".weight"): value for key, value in all_of.items()}
    e, h = norm(w["token_embd"][ids], w["nextn.enorm"]), norm(hidden.astype(float), w["nextn.hnorm"])
    x = np.concatenate([e, h], -1) @ w["nextn.eh_proj"].T
    x = x + attended(w, norm(x, w["attn_norm"]), kind)
    x = x + kind.feed_forward(w, norm(x, w[kind.ffn_norm]))
    x = norm(x, w["nextn.shared_head_norm"])
    return x @ w.get("output", w["token_embd"]).T, x


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unlikely ids are drafted, too, whatever steps take."""
    monkeypatch.setattr(StepTimes, "of", lambda self, n_rows: 1 + 0.02 * n_rows)
    monkeypatch.setattr("graphml.runtime.blocks.drafting.LEAST_PROBABILITY", 0.0)
    monkeypatch.setattr("graphml.runtime.blocks.drafting._MOST_SKIPPED", 1)


@pytest.fixture(scope="module", params=[(n, b) for n in FAMILIES for b in ("cpu", "reference")], ids="-".join)
def opened(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[graphml.Model, Kind]]:
    name, backend = request.param
    path = write_model(tmp_path_factory.mktemp("ahead") / "model.gguf", *MODELS[name])
    with graphml.load(path, backend, threads=1, n_batch=16, kv="f32") as model:
        yield model, FAMILIES[name]


def test_layers_ahead_are_their_formulas(opened: tuple[graphml.Model, Kind]) -> None:
    model, kind = opened
    generator = np.random.default_rng(3)
    ids, hidden = generator.integers(0, 80, 33).tolist(), generator.standard_normal((33, 64), np.float32)
    wanted, rows = in_numpy(Path(model.path), kind, ids, hidden)
    head = prediction_head(model.executor)
    text = OneText(head.executor).sequence
    for first, end in ((0, 16), (16, 30), (30, 31), (31, 32), (32, 33)):  # chunks, then one by one
        logits, row = head.step(text, ids[first:end], hidden[first:end])
        np.testing.assert_allclose(logits, wanted[end - 1], rtol=2e-4, atol=2e-4)
        np.testing.assert_allclose(row, rows[end - 1], rtol=2e-4, atol=2e-4)


# Both backends compute the layers alike, see above: how texts go on is no backend's matter.
ON_THE_CPU = pytest.mark.parametrize(
    "opened", [(name, "cpu") for name in FAMILIES], indirect=True, ids="-".join
)


def memory_of(model: graphml.Model, n_blocks: int) -> int:
    """Bytes in which an engine of three sequences has so many blocks."""
    executor = model.executor

    def found(given: int) -> int:
        try:
            rooms = window_rooms(executor, given, 3, 96)
            n_checkpoints = 0 if rooms else n_checkpoints_for(executor, given, 3)
            return n_blocks_for(executor, given, 3, 96, n_checkpoints, rooms)
        except UsageError:
            return 0

    sizes = range(1 << 12, 1 << 21, 1 << 9)
    return sizes[bisect_left(sizes, n_blocks, key=found)]


@ON_THE_CPU
def test_texts_are_the_same_alone_and_in_batches(opened: tuple[graphml.Model, Kind]) -> None:
    model, _ = opened
    prompts = [[1, 5, 9, 3], list(range(40)), [7] * 9]
    found = []
    for spec_type in ("none", "mtp"):
        params = SamplingParams(spec_type=spec_type)
        with model.session(n_ctx=128) as session:
            found.append([token.id for token in session.generate(prompts[0], params, 40)])
            stats = session.stats
        for given in (None, memory_of(model, 4)):  # and with so few blocks that one is preempted
            with model.engine(max_sequences=3, n_ctx=96, kv_memory=given) as engine:
                with model.executor.lock:  # no step runs before all are there
                    handles = [engine.submit(one, params, 40) for one in prompts]
                results = [handle.result(60) for handle in handles]
                found.append([one.tokens for one in results])
                n_preempted = engine.stats().n_preempted
            assert (n_preempted > 0) == (given is not None) or model.arch == "mimo2"  # whose windows are few
    assert found[:3] == found[3:]
    assert stats.n_drafted > 0
    assert sum(one.n_drafted for one in results) > 0


@ON_THE_CPU
def test_rewound_and_forked_texts_go_on_as_without(opened: tuple[graphml.Model, Kind]) -> None:
    model, _ = opened
    prompt, found = [1, 5, 9, 3], []
    for spec_type in ("none", "mtp"):
        params = SamplingParams(spec_type=spec_type)
        with model.session(n_ctx=128) as session:
            given = [token.id for token in islice(session.generate(prompt, params), 15)]
            with session.fork() as fork:
                found.append([token.id for token in fork.generate([], params, 20)])
            session.rewind(len(prompt) + 6)
            found.append([*given, *(token.id for token in session.generate([2, 4], params, 20))])
    assert found[:2] == found[2:]
