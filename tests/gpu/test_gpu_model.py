"""A small model on the GPU backends: long contexts, layers shared with the CPU, what a step is made of."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from graphml_gpu.lowering import attention
from graphml_gpu.program import GpuProgram

import graphml
from graphml.loading import discovery
from graphml.runtime.programs.executor import Executor
from graphml.runtime.programs.load_options import LoadOptions
from graphml.runtime.programs.open_executor import open_executor
from tests.golden import nmse
from tests.one_text import OneText
from tests.sample_models import MODELS, write_model
from tests.stories import STORIES
from tests.test_architectures import N_BATCH, Sequence

DEVICES = [name for name in ("opencl", "wgpu") if discovery.backend(name).unavailable() is None]
TOKENS = np.random.default_rng(5).integers(3, 500, 66)
PIECES = [62, 1, 1, 1, 1]

pytestmark = pytest.mark.skipif(not DEVICES, reason="neither wgpu nor OpenCL finds a device")


def after(executor: Executor, pieces: list[int]) -> np.ndarray:
    """Logits after the tokens, fed in pieces of so many."""
    text, found = OneText(executor, 96), []
    for piece in np.split(TOKENS[: sum(pieces)], np.cumsum(pieces)[:-1]):
        found.append(text.step(piece, all_logits=False)[-1])
    return np.stack(found)


@pytest.fixture(scope="module")
def wanted() -> Iterator[np.ndarray]:
    executor = open_executor(STORIES, LoadOptions("cpu", 2, kv="f32", n_batch=62))
    yield after(executor, PIECES)
    executor.close()


@pytest.mark.parametrize("backend", DEVICES)
def test_contexts_that_are_split_say_the_same(
    backend: str, wanted: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The context is not split up to 64 positions, and is behind them (else 256, or 512 by teams)."""
    monkeypatch.setattr(attention, "_UNSPLIT", 64)
    monkeypatch.setattr(attention, "_UNSPLIT_BY_TEAMS", 64)
    monkeypatch.setattr(attention, "_LEAST", 32)
    executor = open_executor(STORIES, LoadOptions(backend, kv="f32", n_batch=62))
    assert nmse(after(executor, PIECES), wanted) < 1e-9
    program = executor.compiled(1, 1).program
    assert isinstance(program, GpuProgram)
    assert program.fallbacks == []
    executor.close()


@pytest.mark.parametrize("backend", DEVICES)
def test_layers_shared_with_the_cpu_say_the_same(backend: str, wanted: np.ndarray) -> None:
    executor = open_executor(STORIES, LoadOptions(backend, 2, kv="f32", n_batch=62, gpu_layers=2))
    assert nmse(after(executor, PIECES), wanted) < 1e-9
    compiled = executor.compiled(1, 1)
    assert [part.backend for part in compiled.parts] == ["cpu", backend]
    assert compiled.placement is not None
    assert 0 < compiled.placement.cut.token_bytes < 1024
    executor.close()


@pytest.mark.parametrize("backend", DEVICES)
def test_a_layer_of_a_step_is_eight_dispatches(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "_UNSPLIT_BY_TEAMS", 256)  # of the 512 positions that this model has
    executor = open_executor(STORIES, LoadOptions(backend, n_batch=2))
    program = executor.compiled(1, 1).program
    assert isinstance(program, GpuProgram)
    for position, count in ((0, 8), (200, 8), (300, 9)):
        program.inputs["positions"][:1] = position
        grids = program.grids({"T": 1, "O": 1, "S": 1, "B": 12, "C": 384})
        names = [node.name for node, grid in zip(program.nodes, grids, strict=True) if all(grid)]
        assert sum(name.startswith("layers.2.") for name in names) == count
    executor.close()


def generated(backend: str) -> list[list[int]]:
    """What twelve sequences that decode together say."""
    random = np.random.default_rng(1)
    prompts = [[1, *random.integers(3, 500, 1 + i % 5).tolist()] for i in range(12)]
    found: list[list[int]] = [[] for _ in prompts]
    greedy = graphml.SamplingParams(temperature=0.0)
    with (
        graphml.load(STORIES, backend, threads=2, n_batch=48, kv="f32") as model,
        model.batch(12, 32) as batch,
    ):
        for i, token in batch.generate(prompts, greedy, max_tokens=6):
            found[i].append(token.id)
    return found


@pytest.mark.parametrize("backend", DEVICES)
def test_sequences_that_decode_together_on_a_graphics_card(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More rows than the kernels for few take: tiles, which processors are not given."""
    monkeypatch.setenv("GRAPHML_GPU_KERNELS", "graphics")
    assert generated(backend) == generated("cpu")


@pytest.mark.parametrize("backend", DEVICES)
def test_steps_leave_no_memory_behind(backend: str, tmp_path: Path) -> None:
    """Where the driver is a processor, what it keeps is this process's; a step cost 0.9 MB there once."""
    statm = Path("/proc/self/statm")
    if not statm.exists():
        pytest.skip("the system does not tell how much memory a process has")
    path = write_model(tmp_path / "tiny.gguf", *MODELS["llama-grouped"])
    executor = open_executor(path, LoadOptions(backend, kv="f32", n_batch=N_BATCH))
    sequence = Sequence(executor)
    held = []
    for _ in range(2):
        sequence.feed(TOKENS[:40] % 80, piece=1)
        held.append(int(statm.read_text().split()[1]) * mmap.PAGESIZE)
    executor.close()
    assert held[1] - held[0] < 10 << 20
