"""How keys and values are kept where nobody says it: of encoders exactly, of all other models in f16."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphml
from graphml.ir.cells import BLOCK_SIZE
from graphml.loading import discovery
from graphml.runtime.programs.memory_needed import memory_need
from graphml.runtime.programs.open_executor import usual_cache_types
from graphml.workshop.fitting_types import fitting_types, longest_context
from tests.cli.test_commands import graphml_command
from tests.golden import Floats
from tests.sample_models import MODELS, write_model

ENCODERS = ("bert", "eurobert", "gemma-embedding", "jina-bert-v2", "jina-bert-v3", "llama-embed",
            "modern-bert", "neo-bert", "nomic-bert", "nomic-bert-moe", "t5encoder")  # fmt: skip
OTHERS = ("llama", "qwen3", "t5", "dream", "llada", "llada-moe", "rnd1")
"""Models that generate: causal ones, of which some embed too, encoders with a decoder, and of diffusion."""
IDS = [np.random.default_rng(n).integers(4, 60, n).tolist() for n in (3, 17, 40)]


def sample(tmp_path: Path, name: str, form: str | None = None, **metadata: Any) -> Path:
    architecture, model = MODELS[name]
    model = replace(model, metadata={**model.metadata, **metadata})
    return write_model(tmp_path / f"{name}.gguf", architecture, model, form)


def first_sample(architecture: str) -> str:
    return next(name for name, (of, _) in MODELS.items() if of == architecture)


def rows(path: Path, backend: str = "cpu", **options: Any) -> tuple[str, Floats]:
    with graphml.load(path, backend, 2, n_batch=64, **options) as model:
        return model.executor.cache_dtype, np.concatenate(model.embed_ids(IDS, "mean"))


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("architecture", ENCODERS)
def test_an_encoders_rows_are_exact(tmp_path: Path, architecture: str, deterministic: bool) -> None:
    path = sample(tmp_path, first_sample(architecture))
    kept, usual = rows(path, deterministic=deterministic)
    exact = rows(path, kv="f32", deterministic=deterministic)[1]
    half_kept, half = rows(path, kv="f16", deterministic=deterministic)
    assert (kept, half_kept) == ("f32", "f16")
    assert usual.tobytes() == exact.tobytes() != half.tobytes()


@pytest.mark.parametrize("architecture", OTHERS)
def test_other_models_keep_halves(tmp_path: Path, architecture: str) -> None:
    path, results = sample(tmp_path, first_sample(architecture)), []
    for options in ({}, {"kv": "f16"}, {"kv": "f32"}):
        with graphml.load(path, "cpu", 2, n_batch=64, **options) as model:  # type: ignore[arg-type]
            assert model.executor.cache_dtype == options.get("kv", "f16")
            session = model.session(64)
            if model.executor.encodes:
                session.encode(IDS[1])
            results.append(session.eval(IDS[1]).tobytes())
    assert results[0] == results[1] != results[2]


def test_a_model_whose_file_says_that_it_is_not_causal_is_an_encoder(tmp_path: Path) -> None:
    path = sample(tmp_path, "llama-plain", **{"llama.attention.causal": False})
    with graphml.load(path, "reference") as model:
        assert model.executor.cache_dtype == "f32"


def test_what_is_asked_for_is_kept(tmp_path: Path) -> None:
    path = sample(tmp_path, "bert-plain")
    for kv in ("f16", "bf16", "f16/f32", "f32,0=f16"):
        with graphml.load(path, "reference", kv=kv) as model:
            assert model.executor.cache_dtype == kv


def test_products_of_rounded_activations_take_halves(tmp_path: Path) -> None:
    q8 = sample(tmp_path, "bert-plain", "q8_0")
    assert rows(q8)[0] == "f16"
    assert rows(q8, quant="fp32")[0] == "f32"
    assert rows(sample(tmp_path, "modern-bert-plain", "bf16"))[0] == "f16"
    assert rows(sample(tmp_path, "t5encoder-plain", "f16"))[0] == "f32"
    assert rows(sample(tmp_path, "nomic-bert-plain"), quant="q8")[0] == "f16"


@pytest.mark.parametrize(("name", "form", "kv"), [
    ("bert-plain", "f32", "f32"), ("bert-plain", "q8_0", "f16"), ("nomic-bert-plain", "f16", "f32"),
    ("t5encoder-plain", "f32", "f32"),
])  # fmt: skip
def test_a_plan_has_the_bytes_that_texts_take(tmp_path: Path, name: str, form: str, kv: str) -> None:
    path, common = sample(tmp_path, name, form), ("-c", 64, "-b", 64)
    said = json.loads(graphml_command("plan", path, *common, "--json").stdout)
    other = json.loads(graphml_command("plan", path, *common, "--json", "--kv", "bf16").stdout)
    with graphml.load(path, n_batch=64) as model:
        model.embed_ids(IDS, "mean")
        (engine,) = model._texts._engines.values()
        runner = engine._runner
        assert said["kv"] == model.executor.cache_dtype == kv
        assert said["cache_per_token"] * runner.n_blocks * BLOCK_SIZE == runner.state.n_bytes
    assert said["cache"] == other["cache"] * (2 if kv == "f32" else 1)
    assert f"keys and values ({kv})" in graphml_command("plan", path).stdout
    assert json.loads(graphml_command("placement", path, "--json").stdout)["kv"] == kv


def test_contexts_of_types_are_those_of_their_own_caches(tmp_path: Path) -> None:
    """Weights of Q8_0 come with keys and values in f16, so that twice as many tokens fit beside them."""
    with graphml.load(sample(tmp_path, "bert-plain"), "reference") as model:
        executor, most = model.executor, 100_000
        need, half = memory_need(executor, 64), memory_need(executor.with_caches("f16"), 64)
        assert need.cache == 2 * half.cache
        memory = need.total + 1000 * need.cache_per_token
        fits = {fit.name: fit for fit in fitting_types(executor, need, memory, most)}
        asked = {fit.name: fit for fit in fitting_types(executor, need, memory, most, "f32")}
    for kind, kept in (("F16", need), ("Q8_0", half)):
        assert fits[kind].n_ctx == longest_context(kept, fits[kind].weights, memory, most) < most
        assert asked[kind].n_ctx == longest_context(need, fits[kind].weights, memory, most)


def test_every_architecture_of_this_kind_is_among_these() -> None:
    found = {
        name for name in discovery.architecture_names()
        if usual_cache_types(discovery.architecture(name), ["f32"]) == "f32"
    }  # fmt: skip
    assert found == {*ENCODERS, "wavtokenizer-dec"}
