"""What is said of a file that contradicts itself: the key or tensor, what was wanted and what came."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from graphml.engine import discovery
from graphml.engine.loading import open_executor
from graphml.errors import GraphmlError
from tests.test_architectures import write_model

CASES: list[tuple[str, Mapping[str, Any], Mapping[str, tuple[int, ...] | None], str]] = [
    ("gpt2", {}, {"blk.1.attn_qkv.weight": (190, 64), "blk.1.attn_qkv.bias": (190,)},
     r"blk\.1\.attn_qkv\.weight: wanted 192 rows; got f32\[190, 64\]"),
    ("gpt2", {}, {"position_embd.weight": (100, 64)},
     r"position_embd\.weight: wanted 128 rows, as context_length says; got 100"),
    ("bloom", {}, {"token_embd_norm.weight": None}, r"tensor token_embd_norm\.weight is wanted and not in"),
    ("jais", {"attention.layer_norm_epsilon": "tiny"}, {}, r"jais\.attention\.layer_norm_epsilon.*wanted a"),
    ("dots1", {"expert_gating_func": 4}, {}, r"dots1\.expert_gating_func: wanted 1 .* or 2 for .*; got 4"),
    ("dots1", {"expert_group_count": 4, "expert_group_used_count": 1}, {},
     r"\[best_groups\] wanted 4 equal groups of at least 2 elements"),
    ("gpt-oss", {"attention.sliding_window_pattern": [1, 0, 1]}, {}, r"window_pattern.*wanted 2 .*3 x"),
    ("openelm", {"attention.head_count": [4]}, {}, r"openelm\.attention\.head_count.*wanted 2 .*1 x"),
    ("deepseek2", {}, {"blk.0.attn_k_b.weight": None}, r"tensor blk\.0\.attn_k_b\.weight is wanted and not"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "keys", "tensors", "text"), CASES)
def test_an_error_names_what_is_wrong(
    name: str,
    keys: Mapping[str, Any],
    tensors: Mapping[str, tuple[int, ...] | None],
    text: str,
    tmp_path: Path,
) -> None:
    architecture = discovery.architecture(name)
    assert architecture.sample is not None
    model = architecture.sample(name)[0]
    shapes = {tensor: shape for tensor, shape in {**model.tensors, **tensors}.items() if shape is not None}
    metadata = {**model.metadata, **{f"{name}.{key}": value for key, value in keys.items()}}
    path = write_model(tmp_path / "model.gguf", name, replace(model, metadata=metadata, tensors=shapes))
    with pytest.raises(GraphmlError, match=text):
        open_executor(path, "reference").build(1, 1)
