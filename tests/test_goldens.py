"""Every golden on every backend: llama.cpp's logits, in one batch and step by step."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

import graphml_quant
import numpy as np
import pytest

from graphml.engine import discovery
from graphml.engine.cache import PagedCache
from graphml.engine.executor import BLOCK_SIZE, Executor
from graphml.engine.loading import open_executor
from tests import golden
from tests.golden import Floats, nmse

LIMIT = 1e-6
NAMES = golden.names()
BACKENDS = [name for name in discovery.backend_names() if discovery.backend(name).unavailable() is None]
every_golden = pytest.mark.parametrize(("name", "backend"), [(n, b) for n in NAMES for b in BACKENDS])


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("goldens")


@cache
def built(name: str, folder: Path, poison: str | None = None) -> Path:
    return golden.build(golden.read(name), folder / f"{name}-{poison}.gguf", poison)


def evaluate(executor: Executor, pieces: list[list[int]]) -> Floats:
    """Logits after every token, fed piece by piece to a fresh cache."""
    cache = PagedCache(64, BLOCK_SIZE)
    state = executor.state(cache)
    steps = [executor.step(np.array(piece), cache, state, all_logits=True).copy() for piece in pieces]
    return np.concatenate(steps)


def error(name: str, path: Path, backend: str, pieces: list[list[int]]) -> float:
    executor = open_executor(path, backend, cache_dtype="f32", n_batch=32)
    try:
        return nmse(evaluate(executor, pieces), golden.read(name).logits)
    finally:
        executor.close()


def test_there_are_goldens() -> None:
    assert {"llama-dense", "llama-moe"} <= set(NAMES)
    assert "reference" in BACKENDS


@every_golden
def test_one_batch(name: str, backend: str, folder: Path) -> None:
    assert error(name, built(name, folder), backend, [golden.read(name).tokens]) <= LIMIT


@every_golden
def test_step_by_step(name: str, backend: str, folder: Path) -> None:
    tokens = golden.read(name).tokens
    pieces = [tokens[:16], *([token] for token in tokens[16:])]
    assert error(name, built(name, folder), backend, pieces) <= LIMIT


@every_golden
def test_a_poisoned_weight_is_noticed(name: str, backend: str, folder: Path) -> None:
    path = built(name, folder, "blk.1.attn_v.weight")
    assert error(name, path, backend, [golden.read(name).tokens]) > 10 * LIMIT


@pytest.mark.parametrize("name", NAMES)
def test_only_the_input_scales_go_unused(name: str, folder: Path) -> None:
    """llama.cpp writes an `input_scale` beside every weight and reads it for NVFP4 weights alone."""
    executor = open_executor(built(name, folder), "reference")
    executor.build(1, 1)
    assert {tensor.rpartition(".")[2] for tensor in executor.unused_tensors} == {"input_scale"}
    executor.close()


def test_weights_follow_the_formula() -> None:
    """The formula worked out once in Python's own integers."""
    key = int.from_bytes(hashlib.sha256(b"1:blk.0.attn_q.weight").digest()[:16], "little")
    raw = int(np.random.Philox(key=key).random_raw(1)[0])
    parts = sum((raw >> shift) & 0xFFFF for shift in (0, 16, 32, 48))
    wanted = (parts / 65536 - 2) * 3**0.5 / 256**0.5
    assert golden.weights("blk.0.attn_q.weight", (256, 256), 1)[0, 0] == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_norms_and_biases_may_be_half_precision_too(backend: str, kind: str, folder: Path) -> None:
    """Against the same model with every number rounded to half precision and stored in full."""
    one = golden.read("llama-dense")
    tensors = {name: golden.weights(name, sizes, one.seed) for name, sizes in one.tensors.items()}
    form = graphml_quant.by_name(kind)
    rounded = {
        name: graphml_quant.dequantize(form, graphml_quant.quantize(form, array), array.shape)
        for name, array in tensors.items()
    }
    halves, full = folder / f"{kind}-{backend}.gguf", folder / f"{kind}-{backend}-full.gguf"
    golden.write_gguf(halves, one.architecture, one.metadata, tensors, kind, vectors=True)
    golden.write_gguf(full, one.architecture, one.metadata, rounded)
    logits = []
    for path in (halves, full):
        executor = open_executor(path, backend, cache_dtype="f32", n_batch=32)
        logits.append(evaluate(executor, [one.tokens[:9], one.tokens[9:10]]))
        executor.close()
    assert nmse(*logits) <= 1e-11
