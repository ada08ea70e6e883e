"""LoRA adapters and control vectors of random numbers, written as GGUF files; models with one merged in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

from tests import golden

Floats = NDArray[np.float32]
Pairs = Mapping[str, tuple[Floats, Floats]]


def pairs_of(model: golden.Golden, targets: Sequence[str], rank: int, seed: int) -> Pairs:
    """Random pairs of some of its tensors."""
    return random_pairs({name: model.tensors[name][::-1] for name in targets}, rank, seed)


def random_pairs(tensors: Mapping[str, Sequence[int]], rank: int, seed: int) -> Pairs:
    """Random pairs for these shapes: a [.., rank, in] and b [.., out, rank], of the embedding a table."""
    numbers = np.random.default_rng(seed)
    found = {}
    for name, (*before, n_out, n_in) in tensors.items():
        shapes = ((*before, rank, n_in), (*before, n_out, rank))
        if name == "token_embd.weight":
            shapes = ((n_out, rank), (n_in, rank))
        a, b = (numbers.standard_normal(shape, np.float32) / np.float32(shape[-1] ** 0.5) for shape in shapes)
        found[name] = a, b
    return found


def write_adapter(
    path: Path,
    pairs: Pairs,
    architecture: str = "llama",
    alpha: float | None = None,
    kind: str = "lora",
    invocation: Sequence[int] = (),
) -> Path:
    """An adapter as llama.cpp's `convert_lora_to_gguf.py` writes it."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_string("general.type", "adapter")
    writer.add_string("adapter.type", kind)
    if alpha is not None:
        writer.add_float32("adapter.lora.alpha", alpha)
    if invocation:
        key, of = "adapter.alora.invocation_tokens", gguf.GGUFValueType
        writer.add_key_value(key, list(invocation), of.ARRAY, sub_type=of.UINT32)
    for name, (a, b) in pairs.items():
        writer.add_tensor(f"{name}.lora_a", a)
        writer.add_tensor(f"{name}.lora_b", b)
    return _written(writer, path)


def write_vectors(path: Path, directions: Mapping[int, Floats]) -> Path:
    """Control vectors as llama.cpp's `cvector-generator` writes them."""
    writer = gguf.GGUFWriter(path, "controlvector")
    writer.add_string("controlvector.model_hint", "llama")
    for layer, array in directions.items():
        writer.add_tensor(f"direction.{layer}", array)
    return _written(writer, path)


def write_model(path: Path, model: golden.Golden, pairs: Pairs | None = None, factor: float = 0.0) -> Path:
    """The golden's model; with pairs, `factor` times their product is added to its matrices.

    A product's scale does not scale what an adapter adds, but in a feed-forward without experts it does.
    """
    tensors = {name: golden.weights(name, sizes, model.seed) for name, sizes in model.tensors.items()}
    for name, (a, b) in (pairs or {}).items():
        delta = np.float32(factor) * (a @ b.T if "embd" in name else b @ a)
        scale = tensors.get(name.replace(".weight", ".scale"))
        if scale is not None and not name.endswith(("ffn_gate.weight", "ffn_up.weight", "ffn_down.weight")):
            delta = delta / scale.reshape(-1, *[1] * (delta.ndim - 1))
        tensors[name] = tensors[name] + delta
    return golden.write_gguf(path, model.architecture, model.metadata, tensors)


def _written(writer: gguf.GGUFWriter, path: Path) -> Path:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
