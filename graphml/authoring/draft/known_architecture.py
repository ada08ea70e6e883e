"""Finds the known architecture nearest to given traits, by the graphs of their samples.

Knows architectures through discovery; imports none by name.
"""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np

from graphml.authoring.draft.traits import Traits, differences, traits_of
from graphml.errors import GraphmlError
from graphml.ir.graph import Graph
from graphml.ir.language import Builder
from graphml.loading import discovery
from graphml.loading.architecture import Architecture, Keys, SampleModel, Tensors
from graphml.weights import Metadata, Tensor
from graphml.weights.metadata import stored


def sample_graph(architecture: Architecture, model: SampleModel, name: str) -> Graph:
    """The graph of a sample, for steps of one token; name: the architecture in its metadata."""
    keys = {key: stored(value) for key, value in model.metadata.items()}
    config = architecture.read(Keys(Metadata(Path(model.name), keys), name))
    empty = np.zeros(0, np.uint8)
    tensors = {key: Tensor(key, "f32", shape, empty) for key, shape in model.tensors.items()}
    g = Builder(1, 1)
    return g.finish(logits=architecture.build(g, config, Tensors(g, tensors)))


def traits_known(name: str) -> list[Traits]:
    """The traits of a known architecture's samples; none for a sample that cannot be built."""
    return list(_traits(discovery.architecture(name), name))


@functools.cache  # every draft compares with each of them
def _traits(architecture: Architecture, name: str) -> tuple[Traits, ...]:
    traits = []
    for model in architecture.sample(name) if architecture.sample else ():
        try:
            traits.append(traits_of(sample_graph(architecture, model, name)))
        except (GraphmlError, KeyError):
            continue
    return tuple(traits)


def nearest(wanted: Traits, preferred: str | None = None) -> tuple[str, list[str]]:
    """The architecture whose sample differs least, `preferred` of equals, and the differences."""
    best: tuple[int, bool, str, list[str]] | None = None
    for name in discovery.architecture_names():
        for traits in traits_known(name):
            apart = differences(wanted, traits)
            candidate = (len(apart), name != preferred, name, apart)
            best = candidate if best is None else min(best, candidate)
    assert best is not None, "no architecture is installed"
    return best[2], best[3]
