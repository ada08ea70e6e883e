"""Reads LoRA adapters and control vectors: GGUF files as llama.cpp's converters write them, folders of PEFT.

Knows GGUF's two formats (`src/llama-adapter.cpp`, `common/common.cpp` of llama.cpp) and the shapes of a
model's tensors; nothing of graphs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from graphml.errors import WeightsError
from graphml.ir.op import Array
from graphml.loading import discovery
from graphml.loading.huggingface.peft_folder import PeftFolder, files_of
from graphml.passes.control_vectors import ControlVectors
from graphml.passes.lora import EMBEDDING, Adapter
from graphml.system.read_files import guarded
from graphml.weights import ModelFile, Tensor, open_model

A, B = ".lora_a", ".lora_b"


@dataclass(frozen=True)
class StoredFactors:
    """What a GGUF adapter has: the pairs of `Adapter` without what they are multiplied by, alpha / rank.

    alpha: 0 where the file has none, and they are multiplied by 1.
    """

    alpha: float
    pairs: Mapping[str, tuple[Array, Array]]
    invocation: tuple[int, ...]


def read_adapter(path: Path, model: ModelFile) -> Adapter:
    """The low-rank adapter of a GGUF file or of a folder of PEFT.

    Of a file tensors of norms are left out, as llama.cpp leaves them out. WeightsError where it is none, or
    one of another model.
    """
    if path.is_dir():
        with guarded(path, WeightsError):
            peft = PeftFolder(path, model, discovery.families().values())
            digest = hashlib.sha256("".join(map(_hash, files_of(path))).encode()).hexdigest()
            return Adapter(path.name, digest, peft.pairs, peft.invocation, peft.offsets)
    held = read_factors(path, model)
    with guarded(path, WeightsError):
        pairs = {name: _scaled(held.alpha, *pair) for name, pair in held.pairs.items()}
    return Adapter(path.name, _hash(path), pairs, held.invocation)


def read_factors(path: Path, model: ModelFile) -> StoredFactors:
    """The low-rank factors of a GGUF file; WeightsError where it has none, or those of another model."""
    with guarded(path, WeightsError), open_model(path) as file:
        _check_says(file, "general.type", "adapter")
        _check_says(file, "adapter.type", "lora")
        _check_says(file, "general.architecture", model.metadata.text("general.architecture"))
        keys = file.metadata
        alpha = keys.number("adapter.lora.alpha", 0.0)
        invocation = tuple(keys.integers("adapter.alora.invocation_tokens", []))
        return StoredFactors(
            alpha, {name: _pair(file, name, model.tensors) for name in _targets(file)}, invocation
        )


def read_control_vectors(
    files: Sequence[tuple[Path, float]], layers: tuple[int, int], n_embd: int
) -> ControlVectors | None:
    """The sum of control vectors, each times its scale, for the layers from the first to the last one.

    n_embd: of the model. WeightsError for a file that holds no directions of that length. None without any.
    """
    directions: dict[int, Array] = {}
    for path, scale in files:
        with guarded(path, WeightsError), open_model(path) as file:
            _check_says(file, "general.architecture", "controlvector")
            for name, tensor in file.tensors.items():
                start, _, number = name.rpartition(".")
                if start != "direction" or not number.isdecimal() or int(number) < 1:
                    raise WeightsError(f"{path}: wanted tensors direction.1, direction.2, ...; got {name!r}")
                if tensor.n_elements != n_embd:
                    raise WeightsError(
                        f"{path}: {name}: wanted {n_embd} numbers, as the model's rows have; "
                        f"got {tensor.n_elements}"
                    )
                if layers[0] <= int(number) <= layers[1]:
                    array = _float32(tensor).reshape(-1) * np.float32(scale)
                    directions[int(number)] = directions.get(int(number), 0) + array
    if not directions:
        return None
    digest = hashlib.sha256()
    for layer in sorted(directions):
        digest.update(repr(layer).encode() + directions[layer].tobytes())
    return ControlVectors(digest.hexdigest(), directions)


def _check_says(file: ModelFile, key: str, wanted: str) -> None:
    came = file.metadata.text(key, None)
    if came != wanted:
        raise WeightsError(f"{file.path}: {key}: wanted {wanted!r}, got {came!r}")


def _hash(path: Path) -> str:
    """Over the whole file: adapters differ in few bytes."""
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _targets(file: ModelFile) -> list[str]:
    """The tensors that have a pair, in order."""
    targets = []
    for name in file.tensors:
        if not name.endswith((A, B)):
            if name.endswith("_norm.weight"):
                continue
            raise WeightsError(f"{file.path}: wanted tensors that end in {A} or {B}; got {name!r}")
        target = name[: -len(A)]
        for other in (target + A, target + B):
            if other not in file.tensors:
                raise WeightsError(f"{file.path}: {name} has no partner: wanted {other}, too")
        if target not in targets:
            targets.append(target)
    if not targets:
        raise WeightsError(f"{file.path}: wanted pairs of tensors that end in {A} and {B}; there are none")
    return targets


def _pair(file: ModelFile, name: str, known: Mapping[str, Tensor]) -> tuple[Array, Array]:
    """a and b of a tensor, float32; see `Adapter.pairs`."""
    if name not in known:
        raise WeightsError(f"{file.path}: {name}: the model has no such tensor")
    shape = known[name].shape
    a, b = file.tensors[name + A], file.tensors[name + B]
    rank = b.shape[-1] if b.shape else 0
    *before, n_out, n_in = shape if len(shape) > 1 else (0, 0)
    wanted = (*before, rank, n_in), (*before, n_out, rank)
    if name == EMBEDDING:  # the table's rows are looked up: [n_vocab, rank], [n_embd, rank]
        wanted = (shape[0], rank), (shape[1], rank)
    if (a.shape, b.shape) != wanted or len(shape) not in (2, 3) or not rank:
        raise WeightsError(
            f"{file.path}: {name} is {list(shape)}: wanted {A} {list(wanted[0])} and {B} {list(wanted[1])} "
            f"of any rank; got {list(a.shape)} and {list(b.shape)}"
        )
    return _float32(a), _float32(b)


def _float32(tensor: Tensor) -> Array:
    array = tensor.numpy().astype(np.float32)
    if not np.isfinite(array).all():
        raise WeightsError(f"tensor {tensor.name!r}: wanted finite numbers")
    return array


def _scaled(alpha: float, a: Array, b: Array) -> tuple[Array, Array]:
    return (a * np.float32(alpha / b.shape[-1]) if alpha else a), b
