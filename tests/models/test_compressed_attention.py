"""DeepSeek-V4 on a text longer than its groups, against llama.cpp's logits; what its layers cannot do."""

from __future__ import annotations

from pathlib import Path

import graphml_quant
import numpy as np
import pytest
from graphml_models import deepseek4

from graphml.errors import GraphmlError
from graphml.runtime.programs.load_options import LoadOptions
from graphml.runtime.programs.open_executor import open_executor
from graphml.runtime.steps.cell_mover import why_no_shift
from tests import golden
from tests.golden import Floats, nmse
from tests.one_text import OneText
from tests.sample_models import kind_of, write_model

TOKENS = [(37 * i + 11) % 128 for i in range(140)]  # a layer of the golden has groups of 128
LOGITS = Path(__file__).parents[1] / "data" / "compressed_attention.npz"  # of the last 16


def last_logits(path: Path, backend: str, cuts: list[int]) -> Floats:
    executor = open_executor(path, LoadOptions(backend, kv="f32", n_batch=32))
    try:
        text = OneText(executor, 160)
        steps = [text.step(TOKENS[a:b]) for a, b in zip([0, *cuts], [*cuts, len(TOKENS)], strict=True)]
    finally:
        executor.close()
    return np.concatenate(steps)[-16:]


def wanted() -> Floats:
    with np.load(LOGITS) as arrays:
        logits: Floats = arrays["logits"]
    return logits


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("cuts", [[32, 64, 96, 128], [7, 20, 50, 81, 100, 127, 128, 129]])
def test_groups_of_a_long_text_are_those_of_llama_cpp(backend: str, cuts: list[int]) -> None:
    assert nmse(last_logits(golden.file("deepseek4-moe"), backend, cuts), wanted()) < 1e-10


@pytest.mark.parametrize(
    "tensor",
    ["blk.1.indexer.proj.weight", "blk.1.indexer_compressor_kv.weight", "blk.2.attn_compressor_kv.weight"],
)
def test_each_kind_of_groups_matters(tensor: str, tmp_path: Path) -> None:
    one = golden.read("deepseek4-moe")
    path = golden.poisoned(one, golden.file(one.name), tensor, tmp_path / "poisoned.gguf")
    assert nmse(last_logits(path, "reference", [32, 64, 96, 128]), wanted()) > 1e-6


def test_a_quantised_output_matrix_has_its_parts_below_each_other(tmp_path: Path) -> None:
    (model,) = deepseek4.sample("deepseek4")
    metadata = {key: (kind_of(value), value) for key, value in model.metadata.items()}
    tensors = {name: golden.weights(name, shape[::-1], seed=7) for name, shape in model.tensors.items()}
    form, name = graphml_quant.by_name("q8_0"), "blk.0.attn_output_a.weight"
    stored = graphml_quant.quantize(form, tensors[name])
    plain = graphml_quant.dequantize(form, stored, tensors[name].shape)
    logits = []
    for kind, array in (("q8_0", stored), (None, plain)):
        path = tmp_path / f"{kind}.gguf"
        golden.write_gguf(path, "deepseek4", metadata, {**tensors, name: array}, kind)
        executor = open_executor(path, LoadOptions("reference", n_batch=32))
        logits.append(OneText(executor).step([token % 80 for token in TOKENS[:20]]))
        executor.close()
    assert nmse(*logits) < 1e-4


def test_groups_do_not_move(tmp_path: Path) -> None:
    (model,) = deepseek4.sample("deepseek4")
    executor = open_executor(write_model(tmp_path / "m.gguf", "deepseek4", model), LoadOptions("reference"))
    assert "groups of tokens that begin at fixed positions" in str(why_no_shift(executor))
    executor.close()


@pytest.mark.parametrize("ratios", [[0, 1, 8], [0, -4, 8], [0, 4]])
def test_groups_of_no_size_are_refused(ratios: list[int], tmp_path: Path) -> None:
    (model,) = deepseek4.sample("deepseek4")
    key = "deepseek4.attention.compress_ratios"
    metadata = {name: (kind_of(value), value) for name, value in model.metadata.items()}
    metadata[key] = ("ARRAY INT32", ratios)
    tensors = {name: golden.weights(name, shape[::-1], seed=7) for name, shape in model.tensors.items()}
    path = golden.write_gguf(tmp_path / "m.gguf", "deepseek4", metadata, tensors)
    with pytest.raises(GraphmlError, match="compress_ratios"):
        open_executor(path, LoadOptions("reference"))
