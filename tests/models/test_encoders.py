"""Encoders that transformers does not have, and pooling, against float64 NumPy written from the papers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graphml.ir.ops.attention import alibi_slopes
from graphml.loading import discovery
from graphml.loading.architecture import SampleModel
from graphml.runtime.blocks.request import Request
from graphml.runtime.blocks.sequence import Sequence
from graphml.runtime.plans.step_plan import StepPlan
from graphml.runtime.programs.executor import Executor
from graphml.runtime.programs.load_options import LoadOptions
from graphml.runtime.programs.open_executor import open_executor
from graphml.runtime.steps.runner import Runner
from tests import golden
from tests.backend_pairs import BACKENDS
from tests.golden import nmse
from tests.sample_models import write_model

TOKENS = np.random.default_rng(3).integers(0, 80, 40)
EPS, HEADS, WIDTH = 1e-5, 4, 16
ON_CPUS = [name for name in BACKENDS if name in ("reference", "cpu")]
Numbers = np.ndarray[Any, np.dtype[np.float64]]
erf = np.vectorize(math.erf)


def gelu(x: Numbers) -> Numbers:
    return np.asarray(0.5 * x * (1 + erf(x / math.sqrt(2))))


class Weights:
    """The weights of a sample, in float64, by name."""

    def __init__(self, model: SampleModel) -> None:
        self.tensors = {
            name: golden.weights(name, shape[::-1], seed=7).astype(np.float64)
            for name, shape in model.tensors.items()
        }

    def norm(self, x: Numbers, name: str) -> Numbers:
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + EPS)
        return x * self.tensors[f"{name}.weight"] + self.tensors.get(f"{name}.bias", 0)

    def linear(self, x: Numbers, name: str) -> Numbers:
        return x @ self.tensors[f"{name}.weight"].T + self.tensors.get(f"{name}.bias", 0)


def rotated(x: Numbers, base: float) -> Numbers:
    """Heads [T, N, H] rotated in halves."""
    half = x.shape[2] // 2
    angle = np.arange(len(x))[:, None] * base ** (-np.arange(half) / half)
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * cos - b * sin, a * sin + b * cos], -1)


def attention(w: Weights, x: Numbers, part: str, base: float, alibi: bool) -> Numbers:
    if f"{part}attn_qkv.weight" in w.tensors:
        q, k, v = np.split(w.linear(x, f"{part}attn_qkv"), 3, axis=1)
    else:
        q, k, v = (w.linear(x, f"{part}attn_{name}") for name in "qkv")
    if f"{part}attn_q_norm.weight" in w.tensors:
        q, k = w.norm(q, f"{part}attn_q_norm"), w.norm(k, f"{part}attn_k_norm")
    q, k, v = (y.reshape(len(x), HEADS, WIDTH) for y in (q, k, v))
    if base:
        q, k = rotated(q, base), rotated(k, base)
    scores = np.einsum("ihd,jhd->hij", q, k) / math.sqrt(WIDTH)
    if alibi:
        distance = np.abs(np.subtract.outer(np.arange(len(x)), np.arange(len(x))))
        scores -= alibi_slopes(HEADS, 8.0)[:, None, None] * distance
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    scores /= scores.sum(-1, keepdims=True)
    return np.einsum("hij,jhd->ihd", scores, v).reshape(len(x), -1)


def experts(w: Weights, x: Numbers, part: str) -> Numbers:
    """The two most probable experts of each token, by their probabilities."""
    probabilities = np.exp(w.linear(x, f"{part}ffn_gate_inp"))
    probabilities /= probabilities.sum(-1, keepdims=True)
    y = np.zeros_like(x)
    for t, row in enumerate(probabilities):
        for e in np.argsort(-row)[:2]:
            hidden = gelu(w.tensors[f"{part}ffn_up_exps.weight"][e] @ x[t])
            y[t] += row[e] * (w.tensors[f"{part}ffn_down_exps.weight"][e] @ hidden)
    return y


def feed_forward(w: Weights, x: Numbers, part: str) -> Numbers:
    if f"{part}ffn_gate_inp.weight" in w.tensors:
        return experts(w, x, part)
    up = w.linear(x, f"{part}ffn_up")
    if f"{part}ffn_gate.weight" in w.tensors:
        hidden = gelu(w.linear(x, f"{part}ffn_gate")) * up
    elif up.shape[1] == 2 * w.tensors[f"{part}ffn_down.weight"].shape[1]:
        hidden = gelu(up[:, : up.shape[1] // 2]) * up[:, up.shape[1] // 2 :]
    else:
        hidden = gelu(up)
    return w.linear(hidden, f"{part}ffn_down")


def rows(w: Weights, tokens: Any, base: float = 0.0, alibi: bool = False) -> Numbers:
    """The last hidden rows of one text."""
    x = w.tensors["token_embd.weight"][tokens] + w.tensors["token_types.weight"][0]
    if "position_embd.weight" in w.tensors:
        x = x + w.tensors["position_embd.weight"][: len(tokens)]
    x = w.norm(x, "token_embd_norm")
    for part in ("blk.0.", "blk.1."):
        h = w.linear(attention(w, x, part, base, alibi), f"{part}attn_output") + x
        h = w.norm(h, f"{part}attn_output_norm")
        if f"{part}attn_norm_2.weight" in w.tensors:
            h = w.norm(h + x, f"{part}attn_norm_2")
        x = w.norm(feed_forward(w, h, part) + h, f"{part}layer_output_norm")
    return x


def sample(name: str, number: int = 0) -> SampleModel:
    made = discovery.architecture(name).sample
    assert made is not None
    return list(made(name))[number]


CLASSIFIER = {
    "cls.weight": (64, 64),
    "cls.bias": (64,),
    "cls.output.weight": (1, 64),
    "cls.output.bias": (1,),
}


def ranking(name: str, classifier: Mapping[str, tuple[int, ...]], keys: Mapping[str, int]) -> SampleModel:
    """The sample with a classifier."""
    model = sample(name)
    more = {f"{name}.{key}": value for key, value in {"pooling_type": 4, **keys}.items()}
    return replace(model, metadata={**model.metadata, **more}, tensors={**model.tensors, **classifier})


def embedded(executor: Executor, texts: list[Any], pooling: str) -> Numbers:
    """Rows of several texts in one step."""
    pooling = pooling or executor.pooling
    runner, sequences = Runner(executor, 12, 3, pooling=pooling), list[Sequence]()
    for slot, ids in enumerate(texts):
        sequences.append(Sequence(Request(np.array(ids, np.int32), pooling=pooling), slot))
        sequences[-1].slot, sequences[-1].blocks = slot, list(range(4 * slot, 4 * slot + 4))
    pooled = runner.run(StepPlan((), texts=tuple(sequences))).pooled
    return np.concatenate([pooled[sequence] for sequence in sequences])


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[[str, SampleModel, str], Executor]]:
    made: list[Executor] = []

    def opened(name: str, model: SampleModel, backend: str) -> Executor:
        path = write_model(tmp_path / "model.gguf", name, model)
        made.append(open_executor(path, LoadOptions(backend, threads=2, kv="f32", n_batch=128)))
        return made[-1]

    yield opened
    for executor in made:
        executor.close()


PAPERS: list[tuple[str, int, Mapping[str, Any]]] = [
    ("bert", 0, {}), ("jina-bert-v2", 0, {"alibi": True}), ("jina-bert-v2", 1, {"alibi": True}),
    ("nomic-bert-moe", 0, {"base": 10000.0}),
]  # fmt: skip
"""Architecture, number of its sample, what differs from BERT."""


def error(name: str, number: int, more: Mapping[str, Any], backend: str, path: Path) -> float:
    """NMSE of the hidden rows of a sample."""
    model = sample(name, number)
    executor = open_executor(
        write_model(path, name, model), LoadOptions(backend, threads=2, kv="f32", n_batch=128)
    )
    try:
        return nmse(embedded(executor, [TOKENS], "none"), rows(Weights(model), TOKENS, **more))
    finally:
        executor.close()


@pytest.mark.parametrize("backend", ON_CPUS)
@pytest.mark.parametrize(("name", "number", "more"), PAPERS)
def test_hidden_rows(name: str, number: int, more: Any, backend: str, tmp_path: Path) -> None:
    assert error(name, number, more, backend, tmp_path / "model.gguf") < 1e-11


@pytest.mark.parametrize("backend", ON_CPUS)
def test_pooling(backend: str, opened: Any) -> None:
    """Of two texts in one step: the mean of all rows, the first, the last."""
    model, texts = sample("bert"), [TOKENS[:23], TOKENS[20:]]
    executor = opened("bert", model, backend)
    each = [rows(Weights(model), text) for text in texts]
    for pooling, pool in (("mean", lambda x: x.mean(0)), ("cls", lambda x: x[0]), ("last", lambda x: x[-1])):
        got = embedded(executor, texts, pooling)
        assert nmse(got[:2], np.array([pool(one) for one in each])) < 1e-11
        assert pooling != "mean" or not got[2:].any()


@pytest.mark.parametrize("backend", ON_CPUS)
@pytest.mark.parametrize("by", ["cls", "mean"])
def test_rank(backend: str, by: str, opened: Any) -> None:
    """A dense layer with tanh and a projection on the first token's row, or on the mean."""
    model = ranking("bert", CLASSIFIER, {"classifier.pooling_type": 1} if by == "mean" else {})
    executor = opened("bert", model, backend)
    w = Weights(model)
    pooled = [one.mean(0) if by == "mean" else one[0] for one in (rows(w, TOKENS[:23]), rows(w, TOKENS[20:]))]
    wanted = w.linear(np.tanh(w.linear(np.array(pooled), "cls")), "cls.output")
    assert executor.pooling == "rank"
    got = embedded(executor, [TOKENS[:23], TOKENS[20:]], "")
    assert nmse(got[:2], wanted) < 1e-11


def test_the_head_of_modern_bert_has_gelu_and_a_norm(opened: Any) -> None:
    """Of the mean, as llama.cpp has it where the file says nothing of that."""
    tensors = {"cls.weight": (64, 64), "cls.norm.weight": (64,), "cls.output.weight": (2, 64)}
    model = ranking("modern-bert", tensors, {})
    executor, w = opened("modern-bert", model, "reference"), Weights(model)
    hidden = embedded(executor, [TOKENS], "none").astype(np.float64)
    head = w.norm(gelu(w.linear(hidden.mean(0), "cls")), "cls.norm")
    assert nmse(embedded(executor, [TOKENS], "rank")[0], w.linear(head, "cls.output")) < 1e-11


def test_dense_layers_of_a_gguf_file_have_no_activation(opened: Any) -> None:
    """After pooling, whether llama.cpp's keys say their widths or, as of LFM2-ColBERT, nothing does."""
    shapes = {"dense_2.weight": (96, 64), "dense_3.weight": (64, 96)}
    model = sample("gemma-embedding")
    widths = {"gemma-embedding.dense_2_feat_in": 64}
    model = replace(model, metadata={**model.metadata, **widths}, tensors={**model.tensors, **shapes})
    executor, w = opened("gemma-embedding", model, "reference"), Weights(model)
    hidden = embedded(executor, [TOKENS], "none").astype(np.float64)
    wanted = w.linear(w.linear(hidden.mean(0), "dense_2"), "dense_3")
    assert nmse(embedded(executor, [TOKENS], "mean")[0], wanted) < 1e-11
    assert not executor.unused_tensors
