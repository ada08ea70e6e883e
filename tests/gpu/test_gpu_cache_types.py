"""Whole models with caches of every type on GPU backends: the reference's logits, every node by a kernel."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from graphml_models._samples import transformer

from graphml.ir.cache_types import CACHE_DTYPES
from graphml.runtime.programs.executor import Executor
from graphml.runtime.programs.load_options import LoadOptions
from graphml.runtime.programs.open_executor import open_executor
from tests.golden import nmse
from tests.gpu.on_devices import device
from tests.runtime.test_cache_types import TOKENS, logits
from tests.sample_models import write_model

# What may hang on the last bit of a key or a value, which decides between neighbours of a coarse grid.
LIMIT = 1e-4


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with two key-value heads of 32 elements: whole words of every type."""
    heads = {"attention.head_count": 2, "attention.head_count_kv": 2}
    return write_model(
        tmp_path_factory.mktemp("gpu") / "wide.gguf", "llama",
        transformer("llama", "wide", n_head_kv=4, metadata=heads),
    )  # fmt: skip


@pytest.fixture
def opened(path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[Executor, Executor]]:
    backend, kv = request.param
    device(backend)
    if backend == "wgpu":  # where there are subgroups, the attention of graphics cards
        request.getfixturevalue("as_on_graphics_cards")
    both = [
        open_executor(path, LoadOptions(name, kv=kv, n_batch=len(TOKENS))) for name in (backend, "reference")
    ]
    yield both[0], both[1]
    for executor in both:
        executor.close()


# Each type on one of them: test_gpu_attention.py reads each with every kernel, conformance writes it.
KINDS = {"wgpu": ("f16", "q4_0/bf16"), "opencl": ("q8_0/q5_1", "q5_0/f32", "q4_1/iq4_nl")}
PAIRS = [(backend, kv) for backend, kinds in KINDS.items() for kv in kinds]


def test_each_type_is_met_by_a_whole_model() -> None:
    assert {kind for _, kv in PAIRS for kind in kv.split("/")} == set(CACHE_DTYPES)


@pytest.mark.parametrize("opened", PAIRS, indirect=True, ids="-".join)
def test_a_model_is_the_reference_in_a_batch_and_in_steps(opened: tuple[Executor, Executor]) -> None:
    gpu, reference = opened
    wanted = logits(reference)
    assert nmse(logits(gpu), wanted) < LIMIT
    assert nmse(logits(gpu, 1), wanted) < LIMIT
    assert not [node.op.name for node in gpu.compiled(1, 1).program.fallbacks]  # type: ignore[attr-defined]
