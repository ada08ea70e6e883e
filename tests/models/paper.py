"""Decoders in float64 NumPy, from the papers alone: what single features of architectures are held to.

Weights are named as in GGUF, [out, in]. Letters: T tokens, D model width, N heads, K key-value heads, H head
width.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphml.loading.architecture import SampleModel
from graphml.runtime.programs.load_options import LoadOptions
from graphml.runtime.programs.open_executor import open_executor
from tests import golden
from tests.sample_models import kind_of
from tests.test_architectures import N_BATCH, Sequence

Wide = NDArray[np.float64]
Weights = Mapping[str, Wide]
TOKENS = np.random.default_rng(5).integers(0, 80, 60)
EPS = 1e-5


def random_weights(model: SampleModel) -> dict[str, NDArray[np.float32]]:
    """Of every tensor of a tiny model."""
    return {name: golden.weights(name, shape[::-1], seed=11) for name, shape in model.tensors.items()}


def wide(tensors: Mapping[str, NDArray[Any]]) -> Weights:
    """The same in float64."""
    return {name: tensor.astype(np.float64) for name, tensor in tensors.items()}


def logits(
    folder: Path,
    backend: str,
    architecture: str,
    metadata: Mapping[str, Any],
    tensors: Mapping[str, NDArray[Any]],
    form: str | None = None,
) -> golden.Floats:
    """What a file of these says after each of the tokens, fed in pieces and then one by one.

    form: what the tensors of bytes are.
    """
    typed = {key: (kind_of(value), value) for key, value in metadata.items()}
    path = golden.write_gguf(folder / "model.gguf", architecture, typed, tensors, form)
    executor = open_executor(path, LoadOptions(backend, threads=2, kv="f32", n_batch=N_BATCH))
    try:
        sequence = Sequence(executor)
        assert not executor.unused_tensors
        return np.concatenate([sequence.feed(TOKENS[:-4]), sequence.feed(TOKENS[-4:], piece=1)])
    finally:
        executor.close()


def plain_frequencies(base: float, width: int) -> Wide:
    """Angle per position of each pair (Su et al. 2021, arXiv:2104.09864)."""
    return np.array([base ** (-2.0 * i / width) for i in range(width // 2)])


def rotated(x_TNH: Wide, frequencies: Wide, mode: str, magnitude: float = 1.0) -> Wide:
    """Heads rotated by their positions, each pair of dimensions one complex number."""
    n_rot = 2 * len(frequencies)
    halves = (slice(0, n_rot // 2), slice(n_rot // 2, n_rot))
    first, second = halves if mode == "neox" else (slice(0, n_rot, 2), slice(1, n_rot, 2))
    angles = np.arange(len(x_TNH))[:, None, None] * frequencies
    y_complex = (x_TNH[..., first] + 1j * x_TNH[..., second]) * magnitude * np.exp(1j * angles)
    y = x_TNH.copy()
    y[..., first], y[..., second] = y_complex.real, y_complex.imag
    return y


def attention(
    q_TNH: Wide,
    k_TKH: Wide,
    v_TKH: Wide,
    scale: float,
    cap: float = 0.0,
    seen: NDArray[np.bool_] | None = None,
    sinks: Wide | None = None,
) -> Wide:
    """Causal grouped-query attention, [T, N * H]; cap: of the scores (Gemma 2), none if 0.

    seen: whether a token sees another, [T, T] or for each head [N, T, T]; sinks: a score of each head that
    takes part in the softmax and has no value (gpt-oss).
    """
    n_tokens, n_head, _ = q_TNH.shape
    outputs = []
    for head in range(n_head):
        group = head // (n_head // k_TKH.shape[1])
        scores = q_TNH[:, head] @ k_TKH[:, group].T * scale
        if cap:
            scores = cap * np.tanh(scores / cap)
        scores[np.triu_indices(n_tokens, 1)] = -np.inf
        if seen is not None:
            scores[~(seen if seen.ndim == 2 else seen[head])] = -np.inf
        if sinks is not None:
            scores = np.append(scores, np.full((n_tokens, 1), sinks[head]), axis=1)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        outputs.append((weights / weights.sum(axis=1, keepdims=True))[:, :n_tokens] @ v_TKH[:, group])
    return np.concatenate(outputs, axis=1)


def heads(x: Wide, n_head: int) -> Wide:
    """[T, n_head * H] -> [T, n_head, H]."""
    return x.reshape(len(x), n_head, -1)


def rms_norm(x: Wide, weight: Wide) -> Wide:
    """Zhang and Sennrich 2019, arXiv:1910.07467."""
    return np.asarray(x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + EPS) * weight)


def layer_norm(x: Wide, w: Weights, name: str) -> Wide:
    """Ba et al. 2016, arXiv:1607.06450."""
    centred = x - x.mean(axis=-1, keepdims=True)
    normal = centred / np.sqrt(np.mean(centred * centred, axis=-1, keepdims=True) + EPS)
    return np.asarray(normal * w[f"{name}.weight"] + w[f"{name}.bias"])


def silu(x: Wide) -> Wide:
    return np.asarray(x / (1.0 + np.exp(-x)))


def gelu(x: Wide) -> Wide:
    """Hendrycks and Gimpel 2016, arXiv:1606.08415, in its tanh form."""
    return np.asarray(0.5 * x * (1.0 + np.tanh((2.0 / np.pi) ** 0.5 * (x + 0.044715 * x**3))))


def llama(
    w: Weights,
    frequencies: Wide,
    magnitude: float = 1.0,
    mode: str = "norm",
    rounds: int = 1,
    norm_between: bool = False,
) -> Wide:
    """Logits after each token (Touvron et al. 2023, arXiv:2302.13971); two layers, four heads of two groups.

    rounds: how often the layers are run through, with the last norm between the rounds or without.
    """
    x = w["token_embd.weight"][TOKENS]
    for n in range(2 * rounds):
        i = n % 2
        if norm_between and n and i == 0:
            x = rms_norm(x, w["output_norm.weight"])
        part = {name.removeprefix(f"blk.{i}."): value for name, value in w.items()}
        h = rms_norm(x, part["attn_norm.weight"])
        q, k, v = (heads(h @ part[f"attn_{name}.weight"].T, n) for name, n in (("q", 4), ("k", 2), ("v", 2)))
        q, k = (rotated(one, frequencies, mode, magnitude) for one in (q, k))
        x = x + attention(q, k, v, q.shape[2] ** -0.5) @ part["attn_output.weight"].T
        h = rms_norm(x, part["ffn_norm.weight"])
        gate, up = h @ part["ffn_gate.weight"].T, h @ part["ffn_up.weight"].T
        x = x + (silu(gate) * up) @ part["ffn_down.weight"].T
    return np.asarray(rms_norm(x, w["output_norm.weight"]) @ w["output.weight"].T)
