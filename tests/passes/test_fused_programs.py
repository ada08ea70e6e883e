"""Fused graphs full of patterns mean what the plain ones do, in NumPy and on every backend."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from graphml.backend import Backend, Device
from graphml.compiler.compile import compile_graph
from graphml.compiler.options import CompileOptions
from graphml.inspect.compare.tolerances import makes_int8
from graphml.ir.dtype import dtype
from graphml.ir.graph import Graph
from graphml.ir.interpreter import interpret
from graphml.ir.node import Node
from graphml.ir.op import Array, Sample, Type
from graphml.ir.ops.leaf import weight_leaf
from graphml.ir.shape import fixed
from graphml.ir.verify import verify
from graphml.loading import discovery
from graphml.passes.expand import expand
from tests.backend_pairs import GPUS
from tests.graphs import Recipe, random_graphs
from tests.passes.patterns import FUSED, LINEAR, LINEAR_ATTRIBUTES, fuse_all


@st.composite
def graphs_full_of_patterns(draw: st.DrawFn) -> Recipe:
    """Fused ops' decompositions that read each other where types fit: plain graphs in which much is fused."""
    made = draw(random_graphs(only=FUSED, weights=True))
    return with_products(Recipe(expand(made.graph), made.fills))


def with_products(recipe: Recipe) -> Recipe:
    """Converted outputs, whose layout is each backend's own, give way to products with them."""
    nodes, outputs, fills = list(recipe.graph.nodes), dict(recipe.graph.outputs), dict(recipe.fills)
    for name, node in recipe.graph.outputs.items():
        if not node.dtype.is_format:
            continue
        kind = Type(dtype("q4_1"), (8, fixed(node.shape[-1])))
        weight = Node(weight_leaf, (), kind, f"{name}.weight")
        result = LINEAR.infer([kind, node.type], LINEAR_ATTRIBUTES)
        product = Node(LINEAR, (weight, node), result, f"{name}.product", LINEAR_ATTRIBUTES)
        nodes += [weight, product]
        outputs[name], fills[weight.name] = product, (Sample((kind,)), 0)
    return Recipe(Graph(tuple(nodes), outputs), fills)


def near(got: Array, want: Array) -> bool:
    finite = np.isfinite(want)
    if not np.array_equal(finite, np.isfinite(got)):
        return False
    error, size = ((got - want)[finite].astype(np.float64) ** 2).sum(), (want[finite] ** 2).sum()
    return bool(error <= 1e-6 * max(float(size), 1e-30))


@pytest.fixture(scope="module")
def devices() -> Iterator[dict[str, tuple[Backend, Device]]]:
    backends = [discovery.backend(name) for name in discovery.backend_names()]
    opened = {b.name: (b, b.open(2)) for b in backends if b.unavailable() is None}
    yield opened
    for _, device in opened.values():
        device.close()


# A failing graph is printed whole, whatever its size: that warning must not hide what failed.
@pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisWarning")
def test_fused_is_unfused_on_every_backend(devices: dict[str, tuple[Backend, Device]]) -> None:
    """Against the reference, in graphs of which half or more is fused.

    Compilers of GPUs take long, and what is fused is the same: they see the smallest graphs that have all
    fusions that were found, in turn.
    """
    found: list[tuple[Recipe, frozenset[str]]] = []

    @settings(deadline=None, max_examples=150)
    @given(graphs_full_of_patterns())
    def on_processors(recipe: Recipe) -> None:
        arrays = recipe.arrays()
        with np.errstate(all="ignore"):
            want = interpret(recipe.graph, {name: array.copy() for name, array in arrays.items()})
            fused, log = fuse_all(recipe.graph, FUSED)
            got = interpret(verify(fused), {name: array.copy() for name, array in arrays.items()})
        assume(log.applied)
        for name, value in want.items():
            np.testing.assert_array_equal(got[name], value)
        found.append((recipe, frozenset(one.fusion for one in log.applied)))
        for name, (backend, device) in devices.items():
            # numba converts nothing to 8 bits, and its programs hold no such value: a BackendError says so.
            if name == "numba" and any(map(makes_int8, recipe.graph.nodes)):
                continue
            if name not in GPUS:
                # The reference backend interprets graphs, as was done above with the one that is not fused.
                check(backend, device, recipe, want, ("all", "none") if name != "reference" else ("all",))

    on_processors()
    gpus = [devices[name] for name in devices if name in GPUS]
    for i, recipe in enumerate(smallest(found) if gpus else []):
        with np.errstate(all="ignore"):
            want = interpret(recipe.graph, {name: array.copy() for name, array in recipe.arrays().items()})
        check(*gpus[i % len(gpus)], recipe, want, ("all", "none") if i % 3 == 0 else ("all",))


def smallest(found: list[tuple[Recipe, frozenset[str]]]) -> list[Recipe]:
    """Graphs that have all fusions: of each fusion that those before lack the smallest graph with it."""
    chosen: dict[int, Recipe] = {}
    met: set[str] = set()
    in_order = sorted(found, key=lambda one: len(one[0].graph.nodes))
    for fusion in sorted({fusion for _, fusions in found for fusion in fusions}):
        if fusion not in met:
            at, (recipe, fusions) = next((i, one) for i, one in enumerate(in_order) if fusion in one[1])
            chosen[at] = recipe
            met |= fusions
    return list(chosen.values())


def check(
    backend: Backend, device: Device, recipe: Recipe, want: Mapping[str, Array], ways: tuple[str, ...]
) -> None:
    """A backend gives what is wanted, with fusions or without."""
    for switches in ways:
        outputs = run_on(backend, device, recipe, recipe.arrays(), switches)
        for name, value in want.items():
            assert near(outputs[name], value), f"{backend.name}, {switches}: {name}"


def run_on(
    backend: Backend, device: Device, recipe: Recipe, arrays: Mapping[str, Array], switches: str
) -> dict[str, Array]:
    weights = {name: arrays[name] for name in recipe.graph.leaves("weight")}
    compiled = compile_graph(recipe.graph, backend, device, weights, options=CompileOptions(switches))
    dims = {name: symbol.bound for name, symbol in recipe.graph.symbols().items()}
    state = device.state(compiled.graph, dims)
    for name, array in arrays.items():
        if name in compiled.program.inputs:
            compiled.program.inputs[name][...] = array
        elif name in compiled.graph.leaves("state"):
            state.array(name)[...] = array
    return {name: array.copy() for name, array in compiled.program.run(dims, state).items()}
