"""Scaled ropes beyond the context first trained for, against float64 NumPy from the papers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graphml_models._samples import HEAD_DIM, Shapes, transformer

import graphml
from tests.golden import nmse
from tests.models import paper
from tests.models.paper import Wide, plain_frequencies

BASE, ORIGINAL, N_CTX = 500.0, 32, 128
PLAIN = plain_frequencies(BASE, HEAD_DIM)
FACTOR = N_CTX / ORIGINAL
LIMIT = 1e-10
on_both = pytest.mark.parametrize("backend", ["reference", "cpu"])


def check(
    folder: Path,
    backend: str,
    frequencies: Wide,
    magnitude: float = 1.0,
    factors: Wide | None = None,
    **rope: float | str,
) -> None:
    """A llama with these settings says what one with these frequencies says, and a plain one does not.

    factors: the file's tensor of factors.
    """
    settings = {f"rope.{key.replace('__', '.')}": value for key, value in rope.items()}
    top: Shapes = {} if factors is None else {"rope_freqs.weight": (len(factors),)}
    model = transformer("llama", top=top, metadata={"rope.freq_base": BASE, **settings})
    tensors = paper.random_weights(model)
    if factors is not None:
        tensors["rope_freqs.weight"] = factors.astype(np.float32)
    got = paper.logits(folder, backend, "llama", model.metadata, tensors)
    assert nmse(got, paper.llama(paper.wide(tensors), frequencies, magnitude)) < LIMIT
    assert nmse(got, paper.llama(paper.wide(tensors), PLAIN)) > 1e-4


@on_both
def test_linear(backend: str, tmp_path: Path) -> None:
    """Positions are interpolated (Chen et al. 2023, arXiv:2306.15595)."""
    check(tmp_path, backend, PLAIN / FACTOR, scaling__type="linear", scaling__factor=FACTOR)


def yarn(fast: float, slow: float, most: float) -> Wide:
    """Pairs that turn often in the original context stay, those that hardly turn are interpolated.

    YaRN, Peng et al. 2023, arXiv:2309.00071; between them a ramp over the pairs, as in the authors' code.
    most: of a pair that stays so much stays.
    """

    def pair_that_turns(times: float) -> float:
        return float(HEAD_DIM * np.log(ORIGINAL / (times * 2.0 * np.pi)) / (2.0 * np.log(BASE)))

    first, last = max(np.floor(pair_that_turns(fast)), 0.0), np.ceil(pair_that_turns(slow))
    kept = [min(max((last - i) / (last - first), 0.0), 1.0) * most for i in range(HEAD_DIM // 2)]
    return np.array([f * k + f / FACTOR * (1.0 - k) for f, k in zip(PLAIN, kept, strict=True)])


@on_both
@pytest.mark.parametrize(("fast", "slow", "most"), [(32.0, 1.0, 1.0), (2.0, 0.2, 1.0), (4.0, 0.5, 0.7)])
def test_yarn(fast: float, slow: float, most: float, backend: str, tmp_path: Path) -> None:
    """Queries and keys grow too: 0.1 ln(factor) + 1 each."""
    wanted = yarn(fast, slow, most)
    assert wanted[-1] == pytest.approx(PLAIN[-1] / FACTOR)
    assert wanted[1] > 1.1 * PLAIN[1] / FACTOR
    said: dict[str, Any] = {"scaling__yarn_ext_factor": most} if most != 1.0 else {}
    check(tmp_path, backend, wanted, 0.1 * np.log(FACTOR) + 1.0,
          scaling__type="yarn", scaling__factor=FACTOR, scaling__original_context_length=ORIGINAL,
          scaling__yarn_beta_fast=fast, scaling__yarn_beta_slow=slow, **said)  # fmt: skip


@on_both
def test_dynamic(backend: str, tmp_path: Path) -> None:
    """The base that transformers takes for a text as long as the context (`rope_type: dynamic`)."""
    times = FACTOR * N_CTX / ORIGINAL - (FACTOR - 1.0)
    wanted = plain_frequencies(BASE * times ** (HEAD_DIM / (HEAD_DIM - 2)), HEAD_DIM)
    assert wanted[-1] * times == pytest.approx(PLAIN[-1])
    check(tmp_path, backend, wanted, scaling__type="dynamic", scaling__factor=FACTOR,
          scaling__original_context_length=ORIGINAL)  # fmt: skip


@on_both
def test_llama_3(backend: str, tmp_path: Path) -> None:
    """Slow pairs are interpolated, fast ones not (Llama 3.1, 2024, arXiv:2407.21783): the file's factors."""
    factor, low, high = 8.0, 1.0, 4.0
    wanted = []
    for frequency in PLAIN:
        turns = ORIGINAL * frequency / (2.0 * np.pi)
        smooth = min(max((turns - low) / (high - low), 0.0), 1.0)
        wanted.append((1.0 - smooth) * frequency / factor + smooth * frequency)
    factors = (PLAIN / np.array(wanted)).astype(np.float32).astype(np.float64)
    assert (factors.min(), factors.max()) == (1.0, 8.0)
    assert len(set(factors)) > 2
    check(tmp_path, backend, PLAIN / factors, factors=factors)


@on_both
@pytest.mark.parametrize("original", [ORIGINAL, N_CTX])
def test_longrope(original: int, backend: str, tmp_path: Path) -> None:
    """Factors for each pair, others for a longer context (Ding et al. 2024, arXiv:2402.13753).

    Phi-3's tensors hold queries, keys and values together, and gate and up.
    """
    fused: Shapes = {"attn_qkv.weight": (128, 64), "ffn_up.weight": (192, 64)}
    factors: Shapes = {"rope_factors_short.weight": (8,), "rope_factors_long.weight": (8,)}
    times = (1.0 + np.log(N_CTX / original) / np.log(original)) ** 0.5
    magnitude = float(np.float32(times))  # as files hold it
    metadata: dict[str, Any] = {
        "rope.freq_base": BASE,
        "rope.scaling.type": "longrope",
        "rope.scaling.attn_factor": magnitude,
        "rope.scaling.original_context_length": original,
    }
    without = ("ffn_gate.weight", "attn_q.weight", "attn_k.weight", "attn_v.weight")
    model = transformer("phi3", layer=fused, top=factors, without=without, metadata=metadata)
    tensors = paper.random_weights(model)
    tensors["rope_factors_long.weight"] *= np.linspace(1.0, 8.0, 8, dtype=np.float32)
    w = dict(paper.wide(tensors))
    for i in range(2):
        parts = np.split(w[f"blk.{i}.attn_qkv.weight"], [64, 96])
        for name, part in zip("qkv", parts, strict=True):
            w[f"blk.{i}.attn_{name}.weight"] = part
        w[f"blk.{i}.ffn_gate.weight"], w[f"blk.{i}.ffn_up.weight"] = np.split(w[f"blk.{i}.ffn_up.weight"], 2)
    got = paper.logits(tmp_path, backend, "phi3", model.metadata, tensors)
    short, long = PLAIN / w["rope_factors_short.weight"], PLAIN / w["rope_factors_long.weight"]
    used, other = (long, short) if original < N_CTX else (short, long)
    assert nmse(got, paper.llama(w, used, magnitude, "neox")) < LIMIT
    assert nmse(got, paper.llama(w, other, magnitude, "neox")) > 1e-4
    count = min(original, len(paper.TOKENS))
    for n_ctx in (original, original + 1) if original < N_CTX else ():
        with graphml.load(tmp_path / "model.gguf", backend, kv="f32") as opened:
            rows = opened.session(n_ctx=n_ctx).eval(list(paper.TOKENS[:count]), all_logits=True)
        wanted = paper.llama(w, long if n_ctx > original else short, magnitude, "neox")[:count]
        assert nmse(np.asarray(rows), wanted) < LIMIT
