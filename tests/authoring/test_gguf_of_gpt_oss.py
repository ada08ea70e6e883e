"""gpt-oss as a GGUF file: bounds of its rope, experts in MXFP4, llama.cpp's ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import graphml
from graphml.authoring.handing_on import hand_on
from graphml.errors import UsageError
from graphml.runtime.programs.load_options import LoadOptions
from graphml.weights import open_model
from tests.folder_records import TOKENS, about, write_folder
from tests.golden import nmse

OPTIONS = LoadOptions(backend="reference", kv="f32")
ROUNDED = {"gpt-oss.rope.scaling.rounded": True}
FF, EXPERTS, WIDTH = 64, 6, 32
GREEDY = {
    "rounded": [15, 1, 22, 13, 23, 54, 23, 13, 13, 1, 13, 23],
    "mxfp4": [33, 20, 43, 21, 23, 56, 25, 13, 30, 9, 36, 60],
}
"""What llama.cpp 0.5.0 continues `TOKENS` with, of the files that are written here."""


def folder(path: Path, truncate: bool, packed: bool = False) -> Path:
    """The record's folder; packed: its experts in MXFP4."""
    config, tensors, _ = about("gpt_oss")
    config |= {"rope_parameters": config["rope_parameters"] | {"truncate": truncate}}
    if not packed:
        return write_folder(path, config, tensors)
    config |= {"intermediate_size": FF, "quantization_config": {"quant_method": "mxfp4"}}
    plain = {name: shape for name, shape in tensors.items() if ".experts." not in name}
    rng = np.random.default_rng(3)
    write_folder(path, config, plain)
    held: dict[str, Any] = load_file(path / "model.safetensors")
    layers = config["num_hidden_layers"]
    for stem in (f"model.layers.{layer}.mlp.experts." for layer in range(layers)):
        for name, rows, columns in (("gate_up_proj", 2 * FF, WIDTH), ("down_proj", WIDTH, FF)):
            blocks = columns // 32
            held[f"{stem}{name}_blocks"] = rng.integers(0, 256, (EXPERTS, rows, blocks, 16), np.uint8)
            held[f"{stem}{name}_scales"] = rng.integers(122, 126, (EXPERTS, rows, blocks), np.uint8)
            held[f"{stem}{name}_bias"] = (rng.standard_normal((EXPERTS, rows)) / 8).astype(np.float32)
    save_file(held, path / "model.safetensors", metadata={"format": "pt"})
    return path


def handed(path: Path, **options: Any) -> Path:
    with graphml.load(path / "folder", "reference", kv="f32", **options) as model:
        return hand_on(model, path / "out.gguf", None, OPTIONS).path


def logits(path: Path, **options: Any) -> Any:
    with graphml.load(path, "reference", kv="f32", **options) as model:
        return model.session(n_ctx=48).eval(TOKENS.tolist(), all_logits=True)


def greedy(path: Path, count: int) -> list[int]:
    with graphml.load(path, "reference", kv="f32") as model:
        session, ids = model.session(n_ctx=64), list[int]()
        row = session.eval(TOKENS.tolist())
        for _ in range(count):
            ids.append(int(np.argmax(row)))
            row = session.eval(ids[-1:])
    return ids


def test_exact_bounds_are_refused_with_what_rounds_them(tmp_path: Path) -> None:
    folder(tmp_path / "folder", truncate=False)
    with pytest.raises(UsageError, match=r"--override-kv gpt-oss.rope.scaling.rounded=bool:true"):
        handed(tmp_path)


def test_rounded_bounds_are_those_of_a_folder_that_says_so(tmp_path: Path) -> None:
    exact = folder(tmp_path / "folder", truncate=False)
    rounded = folder(tmp_path / "rounded", truncate=True)
    assert (
        nmse(logits(exact, override_kv=ROUNDED), logits(rounded))
        < 1e-12
        < nmse(logits(exact), logits(rounded))
    )
    path = handed(tmp_path, override_kv=ROUNDED)
    assert nmse(logits(path), logits(rounded)) < 1e-12
    assert greedy(path, 12) == GREEDY["rounded"]
    with open_model(path) as file:
        assert file.metadata.text("gpt-oss.rope.scaling.type") == "yarn"
        assert "rope_freqs.weight" not in file.tensors
        assert not [key for key in file.metadata if "rounded" in key]


def test_a_folder_with_rounded_bounds_is_written(tmp_path: Path) -> None:
    source = folder(tmp_path / "folder", truncate=True)
    path = handed(tmp_path)
    assert nmse(logits(path), logits(source)) < 1e-12
    assert greedy(path, 12) == GREEDY["rounded"]
    fields = gguf.GGUFReader(path).fields
    assert fields["gpt-oss.attention.sliding_window"].contents() == 8
    assert fields["gpt-oss.expert_feed_forward_length"].types == [gguf.GGUFValueType.UINT32]


def test_experts_stay_in_mxfp4(tmp_path: Path) -> None:
    source = folder(tmp_path / "folder", truncate=True, packed=True)
    path = handed(tmp_path)
    with open_model(path) as file, graphml.load(source, "reference", kv="f32") as model:
        for name in ("gate", "up", "down"):
            tensor = file.tensors[f"blk.0.ffn_{name}_exps.weight"]
            assert tensor.dtype == "mxfp4"
            wanted = model.tensors[tensor.name]
            assert (np.asarray(tensor.data) == np.asarray(wanted.data)).all()
        assert file.tensors["blk.0.ffn_up_exps.bias"].dtype == "f32"
        assert file.metadata.integer("general.file_type") == gguf.LlamaFileType.MOSTLY_MXFP4_MOE
    assert nmse(logits(path), logits(source)) < 1e-12
    assert greedy(path, 12) == GREEDY["mxfp4"]
