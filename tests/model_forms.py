"""Which models differ in the kinds of their graphs' nodes: tests that look at nodes alone try those.

    python -m tests.model_forms

writes the names of all others, sample models and goldens, to `tests/data/models_alike.txt`: each kind of node
that they have is in a model that is not listed, so a new model is tried until that is run again.
`tests/test_model_forms.py` checks the list. Knows graphs and passes, and needs no weights.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from graphml.compiler.options import DEFAULT
from graphml.ir.node import Node
from graphml.loading import discovery
from graphml.passes.pipeline import apply_passes
from graphml.runtime.programs.model_graphs import ModelGraphs
from graphml.runtime.programs.open_executor import read_architecture
from graphml.weights import Metadata, ModelFile, Tensor
from graphml.weights.metadata import stored
from tests import golden
from tests.sample_models import MODELS

LISTED = Path(__file__).parent / "data" / "models_alike.txt"
ALIKE = frozenset(LISTED.read_text().split())
Form = tuple[Any, ...]


def distinct(names: Sequence[str]) -> list[str]:
    """The models, of those named, that have a kind of node which the others lack."""
    return [name for name in names if name not in ALIKE]


def form(node: Node, called: Callable[[Node], str] = lambda node: node.op.name) -> Form:
    """What tells kinds of nodes apart: the op, attributes, types, and what its operands are `called`."""
    attributes = sorted((name, type(value).__name__) for name, value in node.attributes.items())
    sources = [(called(source), source.dtype.name, len(source.shape)) for source in node.inputs]
    return node.op.name, tuple(attributes), tuple(sources), node.dtype.name, len(node.shape)


def forms(name: str) -> frozenset[Form]:
    """The kinds of nodes of a sample model or a golden, as built and fused for the CPU."""
    graph = graphs_of(name).build(24, 1)
    fused = apply_passes(graph, discovery.backend("cpu"), DEFAULT.fusions())
    return frozenset(form(node) for node in (*graph.nodes, *fused.nodes))


def graphs_of(name: str) -> ModelGraphs:
    """The graphs of a sample model or a golden, without a file."""
    if name in MODELS:
        architecture, sample = MODELS[name]
        metadata, tensors = sample.metadata, sample.tensors
    else:
        one = golden.read(name)
        architecture, metadata = one.architecture, {key: value for key, (_, value) in one.metadata.items()}
        tensors = {tensor: sizes[::-1] for tensor, sizes in one.tensors.items()}
    keys = {key: stored(value) for key, value in {**metadata, "general.architecture": architecture}.items()}
    held = {tensor: Tensor(tensor, "f32", shape, np.zeros(0, np.uint8)) for tensor, shape in tensors.items()}
    file = ModelFile(Path("m.gguf"), Metadata(Path("m.gguf"), keys), held, [])
    return ModelGraphs(file, *read_architecture(file), "f32")


def decodes(name: str) -> bool:
    """Whether it is a decoder alone; of the few others each is tried."""
    model = discovery.architecture(MODELS[name][0] if name in MODELS else golden.read(name).architecture)
    return model.causal and model.encode is None


@cache
def families() -> Sequence[Mapping[str, frozenset[Form]]]:
    """The kinds of nodes of each decoder of the sample models, and of the goldens."""
    return [{name: forms(name) for name in names if decodes(name)} for names in (MODELS, golden.names())]


def alike(family: Mapping[str, frozenset[Form]]) -> list[str]:
    """Models of which each kind of node is in one of the others; those with most kinds are kept."""
    missing = set[Form]().union(*family.values())
    kept = set()
    while missing:
        best = max(family, key=lambda name: len(family[name] & missing))
        kept.add(best)
        missing -= family[best]
    return [name for name in family if name not in kept]


if __name__ == "__main__":
    found = [alike(family) for family in families()]
    LISTED.write_text("".join(f"{name}\n" for names in found for name in names))
    sys.stderr.write(
        f"{[(len(some), len(family)) for some, family in zip(found, families(), strict=True)]}\n"
    )
