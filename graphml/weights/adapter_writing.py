"""Writes LoRA adapters and control vectors as the GGUF files that llama.cpp and graphml read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np


def write_adapter(
    path: Path,
    architecture: str,
    pairs: Mapping[str, tuple[Any, Any]],
    alpha: float,
    invocation: Sequence[int] = (),
) -> None:
    """Write a file with the pairs in float32, which readers multiply by alpha / rank. OSError where it fails.

    invocation: the ids of an activated adapter.
    """
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_string("general.type", "adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", alpha)
    if invocation:
        key, of = "adapter.alora.invocation_tokens", gguf.GGUFValueType
        writer.add_key_value(key, list(invocation), of.ARRAY, sub_type=of.UINT32)
    for name, pair in pairs.items():
        for end, array in zip(("lora_a", "lora_b"), pair, strict=True):
            writer.add_tensor(f"{name}.{end}", np.ascontiguousarray(array, np.float32))
    _finish(writer)


def write_control_vectors(path: Path, model_hint: str, directions: Mapping[int, Any]) -> None:
    """Write a file with the direction of each layer, float32. OSError where it fails.

    model_hint: the architecture of the model.
    """
    writer = gguf.GGUFWriter(path, "controlvector")
    writer.add_string("controlvector.model_hint", model_hint)
    writer.add_int32("controlvector.layer_count", len(directions))
    for layer, array in directions.items():
        writer.add_tensor(f"direction.{layer}", np.ascontiguousarray(array, np.float32))
    _finish(writer)


def _finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
