"""What fits into some memory: sizes beside files that were written, contexts beside what sessions need."""

from __future__ import annotations

import json
from pathlib import Path

import graphml
from graphml.runtime.programs.memory_needed import memory_need
from graphml.weights import open_model
from graphml.workshop.fitting_types import fitting_types, longest_context
from graphml.workshop.quantized_file import WantedTypes, changes, write_quantized
from tests import tiny_model
from tests.cli.test_commands import graphml_command


def test_sizes_are_those_of_files(tmp_path: Path) -> None:
    path = tiny_model.write(tmp_path / "tiny.gguf")
    with graphml.load(path, "reference") as model:
        executor, file = model.executor, model.executor.file
        need = memory_need(executor, 64)
        fits = {fit.name: fit for fit in fitting_types(executor, need, 1 << 30, 160)}
        for kind in ("Q8_0", "Q4_K_M", "F16"):
            plan = changes(file, WantedTypes(kind), None)
            write_quantized(file, plan, kind, tmp_path / f"{kind}.gguf")
            with open_model(tmp_path / f"{kind}.gguf") as written:
                assert fits[kind].weights == written.n_weight_bytes
        sizes = [fit.weights for fit in fits.values()]
        assert sizes == sorted(sizes)


def test_a_longest_context_fits_and_one_more_token_does_not(tmp_path: Path) -> None:
    with graphml.load(tiny_model.write(tmp_path / "tiny.gguf"), "reference") as model:
        need = memory_need(model.executor, 96)
        memory = need.total
        assert longest_context(need, need.weights, memory, 160) == 96
        assert longest_context(need, need.weights, memory - 1, 160) == 95
        assert longest_context(need, need.weights, 1 << 30, 160) == 160
        assert longest_context(need, need.weights, need.weights, 160) == 0


def test_the_command(tmp_path: Path) -> None:
    path = tiny_model.write(tmp_path / "tiny.gguf")
    common = ["plan", path, "--backend", "reference", "-c", 64]
    said = json.loads(graphml_command(*common, "--memory", "1G", "--json").stdout)
    assert said["longest_ctx"] == tiny_model.N_CTX
    assert {row["n_ctx"] for row in said["types"]} == {tiny_model.N_CTX}
    lines = graphml_command(*common, "--memory", "1G").stdout
    assert "F16 is the largest of these with room for 64 tokens" in lines
    assert "none of these has room for 64 tokens" in graphml_command(*common, "--memory", "10K").stdout
    tight = (
        said["total"] - said["weights"] + next(r["weights"] for r in said["types"] if r["type"] == "Q4_K_M")
    )
    assert "Q4_K_M is the largest" in graphml_command(*common, "--memory", f"{tight // 1024 + 1}K").stdout


def test_the_command_says_how_fast_it_is(tmp_path: Path) -> None:
    path = tiny_model.write(tmp_path / "tiny.gguf")
    common = ["plan", path, "--backend", "reference", "-c", 64, "-b", 16]
    asked = ["--speed", "--memory", "1G", "--bandwidth", 10, "--tflops", 1]
    said = json.loads(graphml_command(*common, *asked, "--json").stdout)
    assert said["speed"]["generation"] > 0
    assert all(row["speed"]["prompt"] > 0 for row in said["types"])
    assert said["most_speed"]["prompt"] > said["most_speed"]["generation"] > 0
    lines = graphml_command(*common, "--speed", "--bandwidth", 10).stdout
    assert "speed here, prompt" in lines
    assert "at most at 10 GB/s, generation" in lines
    assert "at most at 10 GB/s, prompt" not in lines


def test_a_memory_that_is_none_is_refused(tmp_path: Path) -> None:
    path = tiny_model.write(tmp_path / "tiny.gguf")
    failed = graphml_command("plan", path, "--memory", "much", "--backend", "reference", code=2)
    assert "--memory: wanted a size such as 500M or 2G" in failed.stderr
