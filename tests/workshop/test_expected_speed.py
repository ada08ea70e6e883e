"""How fast a model will be is measured on random weights of its header, and bounded by a device's figures."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import graphml
from graphml.backend import no_progress
from graphml.bench.made_models import bench_model
from graphml.errors import UsageError
from graphml.ir.work import step_work
from graphml.loading import fetch
from graphml.runtime.programs.load_options import LoadOptions
from graphml.runtime.programs.open_executor import open_executor
from graphml.weights import random_tensors
from graphml.weights.random_tensors import in_shared_memory
from graphml.workshop import expected_speed
from graphml.workshop.expected_speed import most_by_figures
from tests.cli.test_commands import graphml_command
from tests.sample_models import MODELS, write_model

OPTIONS = LoadOptions(threads=1, n_batch=32)
GENERATE = ("llama-plain", "qwen3moe-plain", "mamba2-tied", "gemma3-plain", "rwkv7-plain")


@pytest.mark.parametrize("name", GENERATE)
def test_steps_of_a_header_run_and_are_timed(name: str, tmp_path: Path) -> None:
    path = write_model(tmp_path / "model.gguf", *MODELS[name])
    with closing(fetch.open_header(str(path))) as file:
        speed = expected_speed.expected_speed(file, OPTIONS)
    assert speed.n_prompt > 1
    assert speed.prompt > 0
    assert speed.generation is not None
    assert speed.generation > 0


def test_random_weights_have_the_headers_shapes_and_finite_results(tmp_path: Path) -> None:
    path = bench_model("tiny", "Q4_K_M")
    with closing(fetch.open_header(str(path))) as file:
        shared = in_shared_memory(file, {"output.weight": "q8_0"})
        for name, tensor in file.tensors.items():
            kind = "q8_0" if name == "output.weight" else tensor.dtype
            assert (shared.tensors[name].dtype, shared.tensors[name].shape) == (kind, tensor.shape)
            assert np.isfinite(shared.tensors[name].numpy()).all(), name
        with closing(open_executor(shared, OPTIONS, no_progress)) as executor:
            logits = graphml.Model(executor, path).session(64).eval(range(1, 20))
    assert np.isfinite(logits).all()


def test_matrices_of_a_format_lie_over_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(fetch.open_header(str(bench_model("tiny", "Q4_K_M")))) as file:
        sizes = [each.n_bytes for each in file.tensors.values() if each.dtype == "q4_k"]
        monkeypatch.setattr(random_tensors, "SHARED_BYTES", sum(sizes) // 4)
        tensors = [each for each in in_shared_memory(file, {}).tensors.values() if each.dtype == "q4_k"]
    starts = [each.data.ctypes.data for each in tensors]
    spread = max(start + each.n_bytes for start, each in zip(starts, tensors, strict=True)) - min(starts)
    assert spread < sum(sizes) / 2
    assert len(set(starts)) > 1


def test_a_slow_prompt_is_made_shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expected_speed, "PROMPT_S", 0.0)
    with closing(fetch.open_header(str(bench_model("tiny", "Q4_K_M")))) as file:
        speed = expected_speed.expected_speed(file, LoadOptions(threads=1))
    assert speed.n_prompt == expected_speed.FIRST


def test_texts_of_a_model_that_embeds_are_timed(tmp_path: Path) -> None:
    path = write_model(tmp_path / "model.gguf", *MODELS["bert-plain"])
    with closing(fetch.open_header(str(path))) as file:
        speed = expected_speed.expected_speed(file, OPTIONS)
    assert speed.prompt > 0
    assert speed.generation is None


@pytest.mark.parametrize(("name", "why"), [("t5-plain", "a source text"), ("dream-plain", "several passes")])
def test_models_of_other_kinds_are_refused(name: str, why: str, tmp_path: Path) -> None:
    path = write_model(tmp_path / "model.gguf", *MODELS[name])
    with closing(fetch.open_header(str(path))) as file, pytest.raises(UsageError, match=why):
        expected_speed.expected_speed(file, OPTIONS)


def test_the_most_is_what_bytes_and_operations_allow() -> None:
    with closing(open_executor(fetch.open_header(str(bench_model("tiny", "Q4_K_M"))), OPTIONS)) as executor:
        step, prompt = (step_work(executor.build(n, 1), n, past) for n, past in ((1, 16), (16, 0)))
        assert most_by_figures(executor, 16, 1e9, 0.0) == (None, 1e9 / step.n_bytes)
        by_compute, _ = most_by_figures(executor, 16, 1e15, 1e9)
        by_memory, _ = most_by_figures(executor, 16, 1e6, 1e18)
    weights = sum(t.n_bytes for n, t in executor.file.tensors.items() if n != "token_embd.weight")
    assert step.n_bytes > weights
    assert by_compute == pytest.approx(16 * 1e9 / prompt.flops)
    assert by_memory == pytest.approx(16 * 1e6 / prompt.n_bytes)


def test_a_model_that_embeds_has_no_generation(tmp_path: Path) -> None:
    path = write_model(tmp_path / "model.gguf", *MODELS["bert-plain"])
    with closing(open_executor(fetch.open_header(str(path)), OPTIONS)) as executor:
        assert most_by_figures(executor, 16, 1e9, 0.0) == (None, None)
        prompt, generation = most_by_figures(executor, 16, 1e9, 1e12)
    assert generation is None
    assert prompt is not None
    asked = ["plan", path, "--backend", "reference", "-b", 16, "--bandwidth", 10]
    assert "at most at 10 GB/s, prompt" in graphml_command(*asked, "--tflops", 1).stdout
    assert "does not generate: wanted --tflops" in graphml_command(*asked, code=2).stderr
