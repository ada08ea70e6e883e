"""Which models give GPUs other work than the rest: tests of many models try a GPU with those alone.

    python -m tests.gpu_forms

writes the names of all others, goldens and models of records, to `tests/data/models_alike_on_gpus.txt`. Each
kind of node that they have as fused for GPU backends, and each kind of kernel that they run, is in a model
that is not listed, so a new model is tried until that is run again. `tests/test_model_forms.py` checks the
list. Knows graphs, passes and lowerings; needs neither weights nor a device.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from graphml_gpu.conversions_in_products import own_rows
from graphml_gpu.driver import Facts
from graphml_gpu.limits import unplaced
from graphml_gpu.lowering import table
from graphml_gpu.node_support import computes, refuses
from graphml_gpu.plain_driver import FACTS

from graphml.compiler.options import DEFAULT
from graphml.ir.graph import Graph
from graphml.ir.node import Node
from graphml.loading import discovery
from graphml.passes.pipeline import apply_passes
from tests import golden
from tests.backend_pairs import LISTED
from tests.gpu.cover import PLAIN, kind_of
from tests.model_forms import alike, form, graphs_of
from tests.sample_models import MODELS
from tests.transformers_records import RECORDS, sample_of

DRIVERS = (FACTS, dataclasses.replace(FACTS, has_subgroups=True, subgroup_min=8, subgroup_max=8))
"""Processors, as OpenCL and WebGPU describe them."""


def source(node: Node) -> str:
    """What an operand is to a kernel: what was computed is in memory, whichever op did it."""
    if node.op.family == "leaf":
        return node.op.name
    return "view" if node.op.view else "state" if node.op.is_write else "computed"


def kernels(graph: Graph, facts: Facts) -> Iterator[tuple[Any, ...]]:
    """The kinds of kernels that a fused graph is lowered to on a device."""
    plain = unplaced(facts, facts.features())
    rows = own_rows(graph, facts, plain.features, refuses)
    context = dataclasses.replace(plain, own_row=rows.get)
    for node in graph.nodes:
        if computes(node) and refuses(node) is None and node not in rows:
            yield from map(kind_of, table()[node.op.name].lower(node, context))


def forms(name: str) -> frozenset[Any]:
    """The kinds of nodes of a model and of the kernels of a prompt and of a step of one token."""
    found, graphs = set[Any](), graphs_of(name)
    for graph in (graphs.build(32, 32), graphs.build(1, 1, top_k=True)):
        fused = apply_passes(graph, PLAIN, DEFAULT.fusions())
        found.update(form(node, source) for node in fused.nodes)
        for facts in DRIVERS:
            found.update(kernels(fused, facts))
    return frozenset(found)


def has_one_graph(model: str) -> bool:
    """Whether nothing reads a source text before the decoder's graph."""
    name = MODELS[model][0] if model in MODELS else golden.read(model).architecture
    return discovery.architecture(name).encode is None


@cache
def family() -> Mapping[str, frozenset[Any]]:
    """Forms of each golden and of each record's model. Models with an encoder are all tried."""
    models = {name: name for name in golden.names()}
    models |= {name: sample_of(name) for name in RECORDS}
    return {name: forms(model) for name, model in models.items() if has_one_graph(model)}


if __name__ == "__main__":
    found = alike(family())
    LISTED.write_text("".join(f"{name}\n" for name in found))
    sys.stderr.write(f"{len(found)} of {len(family())}\n")
