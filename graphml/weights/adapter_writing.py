"""Writes LoRA adapters and control vectors as the GGUF files that llama.cpp and graphml read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from graphml.weights.gguf_writing import write_arrays
from graphml.weights.metadata import stored


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
    values = {
        "general.architecture": stored(architecture),
        "general.type": stored("adapter"),
        "adapter.type": stored("lora"),
        "adapter.lora.alpha": stored(alpha, "f32"),
    }
    if invocation:
        values["adapter.alora.invocation_tokens"] = stored(list(invocation), "u32")
    ends = ("lora_a", "lora_b")
    factors = (
        (f"{name}.{end}", np.asarray(array, np.float32))
        for name, pair in pairs.items()
        for end, array in zip(ends, pair, strict=True)
    )
    write_arrays(path, values, factors)


def write_control_vectors(path: Path, model_hint: str, directions: Mapping[int, Any]) -> None:
    """Write a file with the direction of each layer, float32. OSError where it fails.

    model_hint: the architecture of the model.
    """
    values = {
        "general.architecture": stored("controlvector"),
        "controlvector.model_hint": stored(model_hint),
        "controlvector.layer_count": stored(len(directions), "i32"),
    }
    named = ((f"direction.{layer}", np.asarray(array, np.float32)) for layer, array in directions.items())
    write_arrays(path, values, named)
