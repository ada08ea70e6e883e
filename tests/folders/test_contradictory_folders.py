"""Folders whose files say two things: what counts for transformers counts, or the folder is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from graphml.errors import ArchitectureError
from graphml.loading.download.choice import folder_files
from graphml.loading.open_file import open_path
from tests.folder_records import TOKENS, YARN, about
from tests.folders.test_folders_of_transformers import LIMIT, folder, logits
from tests.golden import nmse

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
DEFAULT = {"rope_type": "default", "rope_theta": 10000.0}


def with_tensors(path: Path, name: str, changed: dict[str, str | None], **fields: Any) -> Path:
    """The folder of a record with some tensors that are those of other names; None leaves one out."""
    made = folder(path, name, **fields)
    tensors = load_file(made / "model.safetensors")
    tensors |= {new: tensors[old] for new, old in changed.items() if old is not None}
    kept = {new: values for new, values in tensors.items() if changed.get(new, new) is not None}
    save_file(kept, made / "model.safetensors")
    return made


def computed(path: Path) -> Any:
    return logits(path, "reference", [TOKENS.tolist()])


@pytest.mark.parametrize("name", ["llama", "phi"])
def test_an_output_matrix_of_other_numbers_stays_though_the_config_ties_it(name: str, tmp_path: Path) -> None:
    assert nmse(computed(folder(tmp_path, name, tie_word_embeddings=True)), about(name)[2]) <= LIMIT


def test_one_matrix_under_either_name_is_embedding_and_output(tmp_path: Path) -> None:
    untied = computed(with_tensors(tmp_path / "untied", "llama", {HEAD: EMBEDDING}))
    changes: list[dict[str, str | None]] = [{HEAD: EMBEDDING}, {HEAD: None}, {EMBEDDING: HEAD, HEAD: None}]
    for number, changed in enumerate(changes):
        path = with_tensors(tmp_path / str(number), "llama", changed, tie_word_embeddings=True)
        with open_path(path) as file:
            assert "output.weight" not in file.tensors
        assert np.array_equal(computed(path), untied) == (EMBEDDING not in changed)
    swapped = with_tensors(tmp_path / "swapped", "llama", {EMBEDDING: HEAD})
    assert np.array_equal(computed(path), computed(swapped))


def test_a_bias_of_the_logits_stays_where_the_matrix_is_the_embedding(tmp_path: Path) -> None:
    tied = with_tensors(tmp_path / "tied", "phi", {HEAD: None}, tie_word_embeddings=True)
    untied = with_tensors(tmp_path / "untied", "phi", {HEAD: EMBEDDING})
    assert np.array_equal(computed(tied), computed(untied))


def test_rope_scaling_takes_the_place_of_rope_parameters(tmp_path: Path) -> None:
    assert about("qwen2")[0]["rope_parameters"]["rope_type"] == "yarn"
    path = folder(tmp_path, "qwen2", rope_parameters=DEFAULT, rope_scaling=YARN)
    assert nmse(computed(path), about("qwen2")[2]) <= LIMIT


def test_rope_scaling_changes_the_layers_that_see_all_where_parameters_are_by_kind(tmp_path: Path) -> None:
    by_kind = about("olmo3")[0]["rope_parameters"]
    full = {**by_kind, "full_attention": DEFAULT}
    path = folder(tmp_path, "olmo3", rope_parameters=full, rope_scaling=by_kind["full_attention"])
    assert nmse(computed(path), about("olmo3")[2]) <= LIMIT


def test_rope_scaling_that_would_lose_the_base_is_refused(tmp_path: Path) -> None:
    other = {**DEFAULT, "rope_theta": 5e5}
    scaling = {name: value for name, value in YARN.items() if name != "rope_theta"}
    path = folder(tmp_path, "qwen2", rope_parameters=other, rope_scaling=scaling)
    with pytest.raises(
        ArchitectureError, match=r"rope_theta = 500000\.0 would become 10000\.0: wanted rope_th"
    ):
        open_path(path)
    with open_path(
        folder(tmp_path / "said", "qwen2", rope_parameters=other, rope_scaling=scaling | other)
    ) as file:
        assert file.metadata["qwen2.rope.freq_base"] == 5e5


def test_a_whole_file_beside_shards_is_the_model(tmp_path: Path) -> None:
    path = folder(tmp_path, "llama")
    tensors = load_file(path / "model.safetensors")
    save_file({name: values * 2 for name, values in tensors.items()}, path / "model-1.safetensors")
    index = {"weight_map": dict.fromkeys(tensors, "model-1.safetensors")}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert nmse(computed(path), about("llama")[2]) <= LIMIT
    files = [file.name for file in path.iterdir()]
    assert folder_files(files) == ["config.json", "model.safetensors"]


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [("deepseek_v2", "head_dim", 24), ("deepseek_v32", "head_dim", 24), ("glm_moe_dsa", "head_dim", 24),
     ("minicpm3", "head_dim", 24), ("deepseek_v4", "expert_dtype", "fp4"),
     ("deepseek_v3", "model_type", "kimi_k2"),
     *((name, "rope_parameters", {"original_max_position_embeddings": 16, "rope_theta": 7.0, "factor": 3.0})
       for name in ("laguna", "mellum", "mimo_v2_flash"))],
)  # fmt: skip
def test_what_the_class_replaces_or_never_reads_changes_nothing(
    name: str, field: str, value: Any, tmp_path: Path
) -> None:
    stated = about(name)[0].get(field)
    changed = {**stated, **value} if isinstance(stated, dict) else value
    path = folder(tmp_path, name, **{field: changed})
    assert nmse(computed(path), about(name)[2]) <= LIMIT


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [("deepseek_v3", "head_dim", 24), ("youtu", "head_dim", 24), ("glm4_moe_lite", "head_dim", 24),
     ("deepseek_v4", "expert_dtype", "int8"), ("deepseek_v3", "rms_norm_eps", 0.001)],
)  # fmt: skip
def test_what_the_class_takes_as_stated_is_refused(name: str, field: str, value: Any, tmp_path: Path) -> None:
    with pytest.raises(ArchitectureError, match=f"{field} is '{value}'"):
        open_path(folder(tmp_path, name, **{field: value}))
