"""Tensors of a safetensors file in place of a model's: what a loop of one's own has trained.

`graphml.to_torch(model).state_dict()` has the names. Knows names, shapes and numbers alone.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from graphml.errors import UsageError, did_you_mean
from graphml.loading.huggingface.packed import PLAIN
from graphml.weights import ModelFile, Tensor
from graphml.weights.filemap import FileMap
from graphml.weights.safetensors import read_safetensors

FLOATS = ("F32", "F16", "BF16")


def with_weights(file: ModelFile, path: Path) -> ModelFile:
    """The file with these numbers; a tensor that has the same ones keeps its type.

    UsageError for a name that the file has not, another shape, or numbers that are no floats.
    """
    changed: dict[str, Tensor] = {}
    stored_file = FileMap(path)
    try:
        for name, stored in read_safetensors(stored_file).items():
            of = file.tensors.get(name)
            if of is None:
                raise UsageError(
                    f"{path}: {name!r:.80} is no tensor of {file.path}.{did_you_mean(name, file.tensors)}"
                )
            if stored.dtype not in FLOATS or stored.shape != of.shape:
                wanted = f"floats {list(of.shape)}"
                raise UsageError(f"{path}: {name}: wanted {wanted}; got {stored.dtype} {list(stored.shape)}")
            tensor = Tensor(name, PLAIN[stored.dtype], stored.shape, np.array(stored.data), mapped=False)
            if not np.array_equal(tensor.numpy(), of.numpy()):
                changed[name] = tensor
    finally:
        stored_file.close()
    if not changed:
        raise UsageError(f"{path}: has the numbers of {file.path}: wanted weights that were trained")
    return file.with_tensors({**file.tensors, **changed})
