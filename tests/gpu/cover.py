"""The kernels that graphs are lowered to on a device with some features: each one, of each kind that it has.

Kinds differ in what is switched on or given as a function; of sizes and block formats there are one or two
each, since no text depends on a feature and on these at once. Knows no device.
"""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from graphml_gpu import kernels as package
from graphml_gpu.backend import make_backend
from graphml_gpu.conversions_in_products import own_rows
from graphml_gpu.dispatch import Dispatch
from graphml_gpu.driver import Facts
from graphml_gpu.kernels.lanes import lanes
from graphml_gpu.kernels.read_memory import read_memory
from graphml_gpu.language import Features, Kernel, Specialised
from graphml_gpu.limits import unplaced
from graphml_gpu.lowering import joints
from graphml_gpu.lowering.products import multiplies_integers
from graphml_gpu.node_support import GpuNodeSupport, computes
from graphml_gpu.plain_driver import FACTS, PlainDriver

from graphml.conformance import suite
from graphml.conformance.trial import build
from graphml.ir.dtype import F32, I32, dtype
from graphml.ir.graph import Graph
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.ops.index import set_rows, top_k
from graphml.ir.ops.position import rope
from graphml.ir.shape import Symbol
from graphml.passes.fusions.rope_cache import rope_set_rows
from tests.gpu import test_gpu_attention as attention
from tests.gpu.language.examples import EXAMPLES

FORMATS = ("f32", "q4_0")
SHARED_OUT = ("LANES", "COUNT")
"""Sizes that make other texts."""
GRAPHICS = dataclasses.replace(FACTS, kind="discrete", max_bindings=16)
"""A graphics card without features, and all else as WebGPU guarantees it, but for bindings."""
PLAIN = make_backend("plain", PlainDriver, unavailable=lambda: None)
SUPPORT = GpuNodeSupport(PLAIN.name)
CONVERTING = dataclasses.replace(
    PLAIN, activation=lambda weight: dtype("q8_1") if multiplies_integers(weight.name) else None
)
"""What a device with products of four bytes makes of it."""


def with_subgroups(least: int, most: int, facts: Facts = GRAPHICS) -> Facts:
    """Facts of a device that has them."""
    return dataclasses.replace(facts, has_subgroups=True, subgroup_min=least, subgroup_max=most)


SUBGROUPS = {
    "of any size": with_subgroups(1, 128),  # OpenCL without a word of its vendor
    "of 8 to 32": with_subgroups(8, 32),  # Intel
    "of 32": with_subgroups(32, 32),  # NVIDIA, Apple
    "of 64": with_subgroups(64, 64),  # AMD before RDNA
}


@cache
def graphs() -> tuple[Graph, ...]:
    """Those of the conformance suite, also with 8-bit activations, long contexts, wide heads, long rows."""
    cases = [case for case in suite.chosen(PLAIN) if case.format in FORMATS]
    cases += [case for case in suite.chosen(CONVERTING) if case.format in ("q4_0", "q4_k", "q6_k", "q8_1")]
    graphs = [build([case.at(size)])[0] for case in cases for size in suite.sizes_of(case)]
    graphs += [
        one.graph(100) for name, one in attention.CASES.items() if name.startswith(("split", "few, w"))
    ]
    g = Builder()
    graphs.append(g.finish(y=g.call(top_k, g.input("x", F32, (Symbol("T", 2), 5000)), k=7)))
    return tuple(graphs)


def _dispatches(facts: Facts) -> Iterator[Dispatch]:
    context = unplaced(facts, facts.features())
    for graph in graphs():
        rows = own_rows(graph, facts, facts.features(), SUPPORT.refuses)
        making = dataclasses.replace(context, own_row=rows.get)
        for node in graph.nodes:
            if computes(node) and SUPPORT.refuses(node) is None and node not in rows:
                yield from SUPPORT.lower(node, making)
    for kind in ("f32", "f16", "q8_0"):
        (joint,) = joints()
        yield from joint.lower(_on_their_way(kind), context) or ()


def _on_their_way(kind: str) -> list[Node]:
    """Queries, keys and values of a step, which are turned and kept together."""
    g, tokens = Builder(), Symbol("T", 3)
    q, k, v = (g.input(name, F32, (tokens, 2, 64)) for name in "qkv")
    kept = [g.state(name, dtype(kind), (32, 2, 64)) for name in ("keys", "values")]
    turns, cells = g.input("turns", F32, (tokens, 32, 2)), g.input("cells", I32, (tokens,))
    return [
        g.call(rope, q, turns),
        g.call(rope_set_rows, kept[0], k, turns, cells, distinct=True),
        g.call(set_rows, kept[1], v, cells, to_dtype=kind, distinct=True),
    ]


def kind_of(dispatch: Dispatch) -> tuple[Any, ...]:
    """A kernel and what is switched on in it or given to it as a function."""
    switches = (
        (name, repr(value))
        for name, value in dispatch.constants.items()
        if isinstance(value, bool) or not isinstance(value, int) or name in SHARED_OUT
    )
    return dispatch.kernel, *sorted(switches)


def size_of(dispatch: Dispatch) -> tuple[Any, ...]:
    """A kernel and the sizes that make other texts."""
    return dispatch.kernel, *(dispatch.constants.get(name) for name in SHARED_OUT)


@cache
def kernels(facts: Facts) -> tuple[Specialised, ...]:
    """One of each kind, where there are no subgroups and, of those that use them, where they are of 32.

    For subgroups of other sizes one of each kernel and size of what its lanes share: the parts of a text that
    depend on subgroups are the same whatever is switched on.
    """
    features = facts.features()
    every = facts in (GRAPHICS, SUBGROUPS["of 32"])
    useful = None if every else {k.name for k in kernels(SUBGROUPS["of 32"])}
    kind = kind_of if every else size_of
    found = {
        kind(dispatch): dispatch
        for dispatch in _dispatches(facts)
        if useful is None or dispatch.kernel.name in useful
    }
    made = [one.kernel.specialise(features, **one.constants) for one in found.values()]
    if not features.subgroups:
        return *made, read_memory.specialise(features, N_GROUPS=4, N_LOADS=2)
    return *(one for one in made if one.subgroups), lanes.specialise(features)


def of_the_language(features: Features) -> list[Specialised]:
    """The kernels that use the whole language."""
    return list(dict.fromkeys(example.specialise(features) for example in EXAMPLES.values()))


def written() -> set[str]:
    """Names of all kernels of the package."""
    names: set[str] = set()
    for entry in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        for value in vars(importlib.import_module(entry.name)).values():
            some = value.values() if isinstance(value, Mapping) else (value,)
            names |= {one.name for one in some if isinstance(one, Kernel)}
    return names
