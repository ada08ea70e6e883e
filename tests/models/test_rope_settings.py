"""Rope settings as GGUF metadata state them, with llama.cpp's defaults (src/llama-model.cpp)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from graphml_models._rope import Rope, read_rope

from graphml.errors import ArchitectureError
from graphml.ir.long_texts import LongerThan
from graphml.loading.architecture import Keys
from graphml.weights import open_model
from tests.golden import write_gguf

KINDS = {int: "UINT32", float: "FLOAT32", str: "STRING", bool: "BOOL"}


def read(tmp_path: Path, **keys: float | str) -> Rope:
    metadata = {f"llama.rope.{key.replace('__', '.')}": (KINDS[type(v)], v) for key, v in keys.items()}
    file = open_model(write_gguf(tmp_path / "m.gguf", "llama", metadata, {"x": np.zeros(4, np.float32)}))
    with file:
        return read_rope(Keys(file.metadata, "llama"), 64, 2048)


@pytest.mark.parametrize(
    ("keys", "wanted"),
    [
        ({}, Rope(64)),
        ({"scaling__factor": 4.0}, Rope(64, freq_scale=0.25)),
        ({"scale_linear": 2.0}, Rope(64, freq_scale=0.5)),
        ({"scaling__type": "linear", "scaling__factor": 0.0}, Rope(64)),
        ({"scaling__type": "none", "scaling__factor": 4.0}, Rope(64)),
        ({"freq_base": 5e5, "scaling__attn_factor": 1.5}, Rope(64, freq_base=5e5, attn_factor=1.5)),
        ({"scaling__type": "yarn", "scaling__factor": 8.0},
         Rope(64, freq_scale=0.125, ext_factor=1.0, n_ctx_orig=2048, beta_fast=32.0, beta_slow=1.0)),
        ({"scaling__type": "yarn", "scaling__factor": 2.0, "scaling__original_context_length": 512,
          "scaling__yarn_beta_fast": 16.0},
         Rope(64, freq_scale=0.5, ext_factor=1.0, n_ctx_orig=512, beta_fast=16.0, beta_slow=1.0,
              long=LongerThan("context", 512))),
    ],
)  # fmt: skip
def test_scaling(keys: dict[str, float | str], wanted: Rope, tmp_path: Path) -> None:
    assert read(tmp_path, **keys) == wanted


@pytest.mark.parametrize("by_text", [False, True])
@pytest.mark.parametrize(("original", "long"), [(2047, True), (2048, False), (4096, False)])
def test_longrope_goes_by_the_context_of_files_and_by_the_text_of_folders(
    original: int, long: bool, by_text: bool, tmp_path: Path
) -> None:
    keys: dict[str, float | str] = {"scaling__type": "longrope", "scaling__original_context_length": original}
    longer = LongerThan("text" if by_text else "context", original) if long else None
    assert read(tmp_path, scaling__by_text=by_text, **keys) == Rope(64, long=longer)


def test_part_of_a_head_may_rotate(tmp_path: Path) -> None:
    assert read(tmp_path, dimension_count=32).n_rot == 32


def test_an_unknown_scaling_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(
        ArchitectureError,
        match=r"rope\.scaling\.type: wanted none, linear, yarn, longrope or dynamic; got 'su'",
    ):
        read(tmp_path, scaling__type="su")
