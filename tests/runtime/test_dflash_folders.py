"""Folders of DFlash draft models as z-lab saves them: the tensors and drafts of the GGUF file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import graphml
from graphml.errors import ArchitectureError
from graphml.loading.open_file import open_path
from graphml.sampling import SamplingParams
from tests import golden
from tests.drafted_model import write_model
from tests.runtime.test_block_heads import always, spec, write_draft
from tests.runtime.test_eagle3_folders import LAYER

_ = always  # a fixture
NAMES = {**LAYER, "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
TOP = {"fc": "fc", "enc.output_norm": "hidden_norm", "output_norm": "norm"}
SHARED = ("token_embd.weight", "output.weight")  # the model's, of which published ones have none
OWN: dict[str, Any] = {"mask_token_id": 127, "target_layer_ids": [0, 2]}


def write_folder(path: Path, **own: Any) -> Path:
    """The golden as a folder, without embeddings; own: fields of its own config."""
    of = spec("plain")
    held = {}
    for name, sizes in of.tensors.items():
        stem = name.removesuffix(".weight")
        if stem.startswith("blk."):
            _, layer, part = stem.split(".")
            stem = f"layers.{layer}.{NAMES[part]}"
        elif name in SHARED:
            continue
        held[f"{TOP.get(stem, stem)}.weight"] = golden.weights(name, sizes, of.seed)
    config = {
        "architectures": ["DFlashDraftModel"], "model_type": "qwen3", "block_size": 8, "hidden_size": 40,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 12,
        "intermediate_size": 56, "vocab_size": 128, "max_position_embeddings": 256, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "hidden_act": "silu", "layer_types": ["full_attention"] * 2,
        "sliding_window": None, "use_sliding_window": False, "max_window_layers": 2, "num_target_layers": 4,
        "dflash_config": {**OWN, **own},
    }  # fmt: skip
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    save_file(held, path / "model.safetensors", metadata={"format": "pt"})
    return path


def test_its_tensors_and_drafts_are_those_of_the_file(tmp_path: Path) -> None:
    drafts = write_draft(tmp_path / "dflash.gguf", "plain", without=SHARED), write_folder(tmp_path / "dflash")
    with open_path(drafts[0]) as file, open_path(drafts[1]) as folder:
        assert file.tensors.keys() == folder.tensors.keys()
        for name, tensor in file.tensors.items():
            assert np.array_equal(tensor.numpy(), folder.tensors[name].numpy()), name
    model_path = write_model(tmp_path / "model.gguf")
    said = []
    for draft in drafts:
        with (
            graphml.load(model_path, "cpu", threads=1, kv="f32", draft_model=draft) as model,
            model.session(seed=5) as session,
        ):
            params = SamplingParams(spec_type="dflash", temperature=0)
            tokens = [token.id for token in session.generate([3, 7, 1, 9, 22, 5], params, 40)]
            said.append((tokens, session.stats.n_drafted, session.stats.n_accepted))
    assert said[0] == said[1]
    assert said[0][1] > 0


@pytest.mark.parametrize(
    ("field", "value", "wanted"),
    [("target_layer_ids", [], "target_layer_ids: wanted numbers of layers"),
     ("mask_token_id", None, "mask_token_id: wanted the id"), ("conv_kernel_size", 4, "wanted block_size"),
     ("use_swa", True, "and no windows"), ("causal", "no", "causal: wanted true or false")],
)  # fmt: skip
def test_what_is_not_read_is_refused(field: str, value: object, wanted: str, tmp_path: Path) -> None:
    with pytest.raises(ArchitectureError, match=wanted):
        open_path(write_folder(tmp_path / "dflash", **{field: value}))
