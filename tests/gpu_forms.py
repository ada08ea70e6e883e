"""Which GPUs each golden and each record is tried on: those that it gives other work than the rest do.

    python -m tests.gpu_forms

writes that to `tests/data/models_on_gpus.txt`. Each kind of node that a model has as fused for GPU backends,
and each kind of kernel that it runs, meets a GPU in a model that is listed with one, and each fusion of
several models meets both. Of all such choices it is one with little for drivers to compile. A model that is
not in the list is tried on both. `tests/test_model_forms.py` checks the list. Knows graphs, passes and
lowerings; needs neither weights nor a device.
"""

from __future__ import annotations

import dataclasses
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from graphml_gpu.conversions_in_products import own_rows
from graphml_gpu.dispatch import Dispatch
from graphml_gpu.driver import Facts
from graphml_gpu.limits import unplaced
from graphml_gpu.node_support import computes
from graphml_gpu.plain_driver import FACTS

from graphml.compiler.options import DEFAULT
from graphml.ir.graph import Graph
from graphml.ir.node import Node
from graphml.passes.pipeline import apply_passes
from tests import fusion_counts, golden
from tests.backend_pairs import LISTED
from tests.gpu.cover import PLAIN, SHARED_OUT, SUPPORT, kind_of, size_of
from tests.model_forms import form, graphs_of
from tests.transformers_records import RECORDS, sample_of

DRIVERS = {
    "opencl": dataclasses.replace(
        FACTS, has_subgroups=True, subgroup_min=1, subgroup_max=8192, has_f16=True, has_dot4=True
    ),
    "wgpu": dataclasses.replace(FACTS, has_subgroups=True, subgroup_min=8, subgroup_max=8),
}
"""Processors, as the drivers describe them."""
COSTS = {"opencl": 0.25, "wgpu": 1.0}
"""What compiling a text takes, of what WGSL takes."""
RUN = 500
"""What running a node takes, in letters of WGSL that are compiled in that time."""
Pair = tuple[str, str]


def source(node: Node) -> str:
    """What an operand is to a kernel: what was computed is in memory, whichever op did it."""
    if node.op.family == "leaf":
        return node.op.name
    return "view" if node.op.view else "state" if node.op.is_write else "computed"


def dispatches(graph: Graph, facts: Facts) -> Iterator[Dispatch]:
    """What a fused graph is lowered to on a device."""
    plain = unplaced(facts, facts.features())
    rows = own_rows(graph, facts, plain.features, SUPPORT.refuses)
    context = dataclasses.replace(plain, own_row=rows.get)
    for node in graph.nodes:
        if computes(node) and SUPPORT.refuses(node) is None and node not in rows:
            yield from SUPPORT.lower(node, context)


def switched(dispatch: Dispatch) -> tuple[Any, ...]:
    """A kernel's kind but for what its lanes share, whose part of the text is the same with all switches."""
    kernel, *switches = kind_of(dispatch)
    return kernel, *(switch for switch in switches if switch[0] not in SHARED_OUT)


@cache
def fused(name: str) -> tuple[Graph, ...]:
    """The graphs of a prompt and of a step of one token, as fused for GPUs; with that of an encoder."""
    graphs = graphs_of(models()[name])
    built = [graphs.build(32, 32), graphs.build(1, 1, top_k=True)]
    built += [graphs.build_encoder(32)] if graphs.encodes else []
    return tuple(apply_passes(graph, PLAIN, DEFAULT.fusions()) for graph in built)


@cache
def models() -> Mapping[str, str]:
    """The goldens, and the records with their models."""
    return {name: name for name in golden.names()} | {name: sample_of(name) for name in RECORDS}


@cache
def forms() -> Mapping[Pair, frozenset[Any]]:
    """What each model asks of each GPU: kinds of nodes and of kernels; fusions of several models on each."""
    counts = fusion_counts.recorded()
    times = Counter(fusion for model in models().values() for fusion in counts[model])
    found = {}
    for name, model in models().items():
        nodes = {form(node, source) for graph in fused(name) for node in graph.nodes}
        for gpu, facts in DRIVERS.items():
            made = [dispatch for graph in fused(name) for dispatch in dispatches(graph, facts)]
            kernels = {switched(dispatch) for dispatch in made} | {size_of(dispatch) for dispatch in made}
            both = {(gpu, fusion) for fusion in counts[model] if times[fusion] > 1}
            found[name, gpu] = frozenset(nodes | kernels | both)
    return found


def texts(name: str, gpu: str) -> Mapping[str, int]:
    """What a driver compiles for a model: kernels by their title, with the length of the text."""
    facts = DRIVERS[gpu]
    made = (
        one.kernel.specialise(facts.features(), **one.constants)
        for graph in fused(name)
        for one in dispatches(graph, facts)
    )
    return {kernel.title: len(kernel.wgsl()) for kernel in set(made)}


def chosen() -> list[Pair]:
    """Pairs of model and GPU that have all forms: at each step the one with most new ones for its costs."""
    missing, compiled, pairs = set[Any]().union(*forms().values()), set[Pair](), list[Pair]()
    runs = {name: RUN * sum(len(graph.nodes) for graph in fused(name)) for name in models()}
    needed = {pair: texts(*pair) for pair in forms()}

    def worth(pair: Pair) -> float:
        name, gpu = pair
        new = sum(length for title, length in needed[pair].items() if (title, gpu) not in compiled)
        return len(forms()[pair] & missing) / (COSTS[gpu] * (new + runs[name]))

    def take(pair: Pair) -> None:
        pairs.append(pair)
        missing.difference_update(forms()[pair])
        compiled.update((title, pair[1]) for title in needed[pair])

    for name in golden.FEW:
        for gpu in DRIVERS:
            take((name, gpu))
    while missing:
        take(max(forms(), key=worth))
    for pair in pairs[2 * len(golden.FEW) :][::-1]:
        if forms()[pair] <= set[Any]().union(*(forms()[other] for other in pairs if other != pair)):
            pairs.remove(pair)
    return pairs


if __name__ == "__main__":
    found = chosen()
    lines = [" ".join([name, *(gpu for gpu in DRIVERS if (name, gpu) in found)]) for name in models()]
    LISTED.write_text("".join(f"{line}\n" for line in lines))
    sys.stderr.write(f"{Counter(gpu for _, gpu in found)} of {len(models())} models\n")
