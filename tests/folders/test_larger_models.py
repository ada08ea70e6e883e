"""Language models that are a part of a larger one: other parts are left out and said, nothing of the text is.

Names as `save_pretrained` of transformers 5.24 writes them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from graphml.errors import ArchitectureError
from graphml.loading.open_file import open_path
from tests.folder_records import TOKENS, about, write_folder
from tests.folders.test_folders_of_transformers import LIMIT, logits
from tests.golden import nmse

# Class -> record of its text, what its names begin with, and in place of what; parts that are left out.
LARGER: Mapping[str, tuple[str, str, str, tuple[str, ...]]] = {
    "idefics3": ("llama", "model.text_model.", "lm_head.", ("model.connector.modality_projection.proj.weight",
                 "model.vision_model.encoder.layers.0.self_attn.q_proj.weight")),
    "llava_next": ("llama", "language_model.model.", "language_model.lm_head.",
                   ("image_newline", "multi_modal_projector.linear_1.weight", "vision_tower.norm.weight")),
    "granite_speech": ("granite", "language_model.model.", "language_model.lm_head.",
                       ("encoder.layers.0.attn.to_q.weight", "projector.query")),
    "lighton_ocr": ("qwen3", "model.language_model.", "lm_head.",
                    ("model.vision_encoder.ln_pre.weight", "model.vision_projection.norm.weight")),
    "deepseek_vl_hybrid": ("llama", "model.language_model.", "lm_head.",
                           ("model.aligner.proj.weight", "model.high_res_vision_alpha")),
    "ovis2": ("qwen2", "model.language_model.", "lm_head.",
              ("model.visual_embeddings_table.weight", "model.vision_tower.head_norm.weight")),
    "video_llava": ("llama", "language_model.model.", "language_model.lm_head.",
                    ("image_tower.post_layernorm.weight", "video_tower.post_layernorm.weight")),
    "minicpmv4_6": ("qwen3_5", "model.language_model.", "lm_head.", ("model.merger.mlp.0.pre_norm.weight",)),
    "kimi_k25": ("deepseek_v3", "language_model.model.", "language_model.lm_head.",
                 ("mm_projector.proj.0.bias", "model.mm_projector.pre_norm.bias",
                  "vision_tower.encoder.blocks.0.mlp.fc0.bias")),
    "nemotron_h_omni": ("nemotron_h", "language_model.backbone.", "language_model.lm_head.",
                        ("mlp1.0.weight", "vision_model.radio_model.summary_idxs")),
    "qianfan_ocr": ("qwen3", "language_model.model.", "language_model.lm_head.",
                    ("mlp1.0.bias", "vision_model.encoder.layers.0.ls1")),
    "shieldgemma2": ("gemma3", "model.model.language_model.model.", "model.lm_head.",
                     ("model.model.vision_tower.head.probe",)),
    "qwen2_vl of transformers 4": ("qwen2_vl", "model.", "lm_head.", ("visual.merger.ln_q.weight",)),
}  # fmt: skip
LAYERS = {"kimi_k25": "blocks.", "qianfan_ocr": "encoder.layers."}  # whose files have it for `layers.`


def larger(path: Path, name: str, *more: str) -> Path:
    """A folder of a class, with further tensors."""
    record, stem, head, parts = LARGER[name]
    config, tensors, _ = about(record)
    config = config.get("text_config", config)
    begins = next(name for name in tensors if "embed" in name).partition("embed")[0]
    text = {
        tensor.replace(begins, stem, 1).replace("layers.", LAYERS.get(name, "layers."))
        if tensor.startswith(begins)
        else tensor.replace("lm_head.", head): shape
        for tensor, shape in tensors.items()
        if "visual." not in tensor
    }
    whole = {"model_type": name, "vision_config": {}, "text_config": config}
    whole["tie_word_embeddings"] = config.get("tie_word_embeddings", record == "qwen2_vl")
    return write_folder(path, whole, text | {key: [4, 6] for key in [*parts, *more]})


@pytest.mark.parametrize("name", LARGER)
def test_other_parts_are_left_out_and_said_once(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from tests import folder_records

    of_name = folder_records.values
    monkeypatch.setattr(
        folder_records, "values", lambda tensor, shape: of_name(original(name, tensor), shape)
    )
    path = larger(tmp_path, name)
    got = logits(path, "reference", [TOKENS.tolist()])
    assert nmse(got, about(LARGER[name][0])[2]) <= LIMIT
    (line,) = [record.getMessage() for record in caplog.records if "left out" in record.getMessage()]
    parts = LARGER[name][3]
    assert f"{len(parts)} tensors of other parts" in line
    for tensor in parts:
        assert ".".join(tensor.split(".")[: 2 if tensor.startswith("model.") else 1]) in line


def original(name: str, tensor: str) -> str:
    """The name of a tensor in the record, by which its values go."""
    record, stem, head, _ = LARGER[name]
    known = about(record)[1]
    begins = next(name for name in known if "embed" in name).partition("embed")[0]
    tensor = tensor.replace(LAYERS[name], "layers.") if name in LAYERS and tensor.startswith(stem) else tensor
    renamed = tensor.replace(stem, begins, 1) if tensor.startswith(stem) else tensor.replace(head, "lm_head.")
    return renamed if renamed in known else tensor


def test_an_older_name_of_the_text_is_known(tmp_path: Path) -> None:
    """As published files of `nemotron_h_omni` have it."""
    path = larger(tmp_path, "nemotron_h_omni")
    whole = json.loads((path / "config.json").read_text())
    whole["llm_config"] = whole.pop("text_config")
    (path / "config.json").write_text(json.dumps(whole))
    with open_path(path) as file:
        assert file.metadata.text("general.architecture") == "nemotron_h"


@pytest.mark.parametrize(
    ("name", "tensor"),
    [("idefics3", "model.text_model.gate.weight"), ("llava_next", "language_model.gate.weight"),
     ("ovis2", "model.language_model.layers.0.gate.weight"),
     ("qwen2_vl of transformers 4", "model.gate.weight")],
)  # fmt: skip
def test_a_tensor_of_the_text_without_a_place_is_refused(name: str, tensor: str, tmp_path: Path) -> None:
    with pytest.raises(ArchitectureError, match=f"no place for 1 tensors: '{tensor}'"):
        open_path(larger(tmp_path, name, tensor))


def test_a_bias_of_the_logits_is_not_left_out(tmp_path: Path) -> None:
    with open_path(larger(tmp_path, "ovis2", "lm_head.bias")) as file:
        assert file.tensors["output.bias"].shape == (4, 6)


def test_parts_of_an_unknown_text_are_not_left_out(tmp_path: Path) -> None:
    config, tensors, _ = about("llama")
    whole = {"model_type": "larger", "text_config": config, "tie_word_embeddings": False}
    named = {f"strange.{name}": shape for name, shape in tensors.items()}
    with pytest.raises(ArchitectureError, match=f"no place for {len(tensors)} tensors"):
        open_path(write_folder(tmp_path, whole, named))


def test_a_plain_class_may_have_parts_that_see_and_no_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config, tensors, _ = about("llama")
    parts = {
        "image_newline": [32],
        "model.connector.proj.weight": [2, 2],
        "model.vision_tower.norm.weight": [4],
    }
    open_path(write_folder(tmp_path / "seeing", config, tensors | parts)).close()
    assert "3 tensors of other parts are left out: image_newline, model.connector, model.vision_tower" in (
        caplog.records[-1].getMessage()
    )
    for tensor in ("encoder.norm.weight", "model.image_newlines", "model.projectors.weight"):
        with pytest.raises(ArchitectureError, match=f"no place for 1 tensors: '{tensor}'"):
            open_path(write_folder(tmp_path / tensor, config, tensors | {tensor: [4]}))
