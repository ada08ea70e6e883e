"""Folders of larger models: where the language model is, and what their classes assume of its output."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import graphml
from graphml.errors import ArchitectureError, WeightsError
from graphml.loading.huggingface.folder import language_model
from tests.folder_records import TOKENS, about, write_folder
from tests.golden import Floats, nmse

LIMIT = 1e-8


def logits(path: Path) -> Floats:
    with graphml.load(path, backend="reference", kv="f32") as model:
        return np.asarray(model.session(n_ctx=48).eval(TOKENS.tolist(), all_logits=True))


def test_a_model_that_speaks_thinks_in_a_part_of_its_own(tmp_path: Path) -> None:
    thinker, tensors, wanted = about("qwen3_omni_moe")
    whole = {"model_type": "qwen3_omni_moe", "thinker_config": thinker, "talker_config": {"vocab_size": 3}}
    held = {f"thinker.{name}": shape for name, shape in tensors.items()}
    path = write_folder(
        tmp_path / "whole", whole, held | {"talker.model.norm.weight": [4], "code2wav.norm.weight": [4]}
    )
    same = {f"thinker.{name}": values for name, values in _values(tensors).items()}
    _write(path, same | {"talker.model.norm.weight": np.ones(4, np.float32)})
    assert nmse(logits(path), wanted) <= LIMIT


def _values(tensors: dict[str, list[int]]) -> dict[str, Floats]:
    from tests.folder_records import values

    return {name: values(name, tuple(shape)) for name, shape in tensors.items()}


def _write(path: Path, tensors: dict[str, Floats]) -> None:
    from safetensors.numpy import save_file

    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize("kind", ["mistral3", "internvl", "shieldgemma2", "llava"])
def test_the_class_says_whether_the_output_is_the_embedding(kind: str, tmp_path: Path) -> None:
    inner, tensors, _ = about("qwen2")
    inner = {name: value for name, value in inner.items() if name != "tie_word_embeddings"}
    held = {
        f"model.language_{name}" if name.startswith("model.") else name: shape
        for name, shape in tensors.items()
        if name != "lm_head.weight"
    }
    path = write_folder(tmp_path / kind, {"model_type": kind, "text_config": inner}, held)
    if kind != "llava":
        assert np.isfinite(logits(path)).all()
        return
    with pytest.raises(WeightsError, match="has no output matrix"):
        logits(path)


@pytest.mark.parametrize(("kind", "is_tied"), [("llava", True), ("qwen2_vl", True), ("mistral3", False)])
def test_some_classes_tie_the_output_where_their_text_config_says_it(
    kind: str, is_tied: bool, tmp_path: Path
) -> None:
    inner, tensors, _ = about("qwen2")
    held = {name: shape for name, shape in tensors.items() if name != "lm_head.weight"}
    whole = {"model_type": kind, "tie_word_embeddings": False}
    path = write_folder(
        tmp_path / kind, {**whole, "text_config": {**inner, "tie_word_embeddings": True}}, held
    )
    if is_tied:
        assert np.isfinite(logits(path)).all()
        return
    with pytest.raises(WeightsError, match="has no output matrix"):
        logits(path)


def test_a_null_of_the_language_model_leaves_what_the_larger_one_says() -> None:
    packing = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    whole = {"model_type": "qwen3_vl", "quantization_config": packing, "eos_token_id": 5}
    inner = {"model_type": "qwen3_vl_text", "quantization_config": None, "eos_token_id": None, "head_dim": 8}
    fields = language_model({**whole, "text_config": inner})
    assert (fields["quantization_config"], fields["eos_token_id"], fields["head_dim"]) == (packing, 5, 8)


@pytest.mark.parametrize("kind", [[], {}, 3, None])
def test_a_model_type_that_is_no_text_is_refused(kind: object, tmp_path: Path) -> None:
    config, tensors, _ = about("llama")
    with pytest.raises(ArchitectureError, match="model_type"):
        logits(
            write_folder(
                tmp_path / "none",
                {**config, "model_type": kind, "text_config": {**config, "model_type": kind}},
                tensors,
            )
        )
