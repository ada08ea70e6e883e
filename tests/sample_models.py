"""The architectures' sample models by name, and their files with random weights."""

from __future__ import annotations

from pathlib import Path

from graphml.loading import discovery
from graphml.loading.architecture import SampleModel
from tests import golden

MODELS = {
    f"{name}-{model.name}": (name, model)
    for name in discovery.architecture_names()
    for model in (discovery.architecture(name).sample or (lambda name: ()))(name)
}


def kind_of(value: float | str | list[int]) -> str:
    kinds = {bool: "BOOL", int: "UINT32", float: "FLOAT32", str: "STRING", list: "ARRAY UINT32"}
    return kinds[type(value)]


def write_model(path: Path, architecture: str, model: SampleModel, form: str | None = None) -> Path:
    """The model as GGUF with random weights, its matrices quantised to `form`."""
    metadata = {key: (kind_of(value), value) for key, value in model.metadata.items()}
    tensors = {name: golden.weights(name, shape[::-1], seed=7) for name, shape in model.tensors.items()}
    return golden.write_gguf(path, architecture, metadata, tensors, form)
