"""Every fusion, found by itself: it rewrites its terms, keeps the meaning and where things came from."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain, combinations, cycle, product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from graphml.backend import Backend, Device
from graphml.engine import discovery
from graphml.engine.compile import CompileOptions, compile_graph
from graphml.errors import GraphError, UsageError
from graphml.ir.dtype import F32, dtype
from graphml.ir.fused import as_outputs
from graphml.ir.graph import Graph
from graphml.ir.interpreter import interpret
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.op import Array, Attribute, Op, Pattern, Sample, Several, Term, Type
from graphml.ir.ops.layout import part
from graphml.ir.ops.leaf import LEAVES, weight_leaf
from graphml.ir.ops.linear import quantize
from graphml.ir.shape import fixed
from graphml.ir.text import write
from graphml.ir.verify import verify
from graphml.passes.expand import expand
from graphml.passes.fusion import Applied, FusionLog, Refused, fuse, fusions
from graphml.passes.rewrite import find, rebuild, root_of
from graphml.passes.switches import switched
from tests.graphs import Recipe, random_graphs, sample_ids

TEXTS = Path(__file__).parents[1] / "data" / "fusions"
FUSIONS = fusions()
PATTERNS = [(fusion.name, i) for fusion in FUSIONS.values() for i in range(len(fusion.patterns()))]
LINEAR, LINEAR_ATTRIBUTES = FUSIONS["dequant_mul_mat"].replace, {"bias": False, "residual": False}
FUSED = {fusion.replace for fusion in FUSIONS.values()}
SAMPLES = [(op, sample) for op in sorted(FUSED, key=lambda op: op.name) for sample in op.samples()]


def weights_of(g: Builder, op: Op, sample: Sample, names: tuple[str, ...]) -> dict[str, Node]:
    return {
        name: (g.state if op.writes == i else g.weight)(name, kind.dtype, kind.shape)
        for i, (name, kind) in enumerate(zip(names, sample.inputs, strict=True))
    }


def inner(graph: Graph) -> list[Node]:
    return [node for node in graph.nodes if node.op not in LEAVES]


def subsets(attributes: Mapping[str, Attribute]) -> Iterator[dict[str, Attribute]]:
    items = list(attributes.items())
    every = chain.from_iterable(combinations(items, n) for n in range(len(items), -1, -1))
    return (dict(chosen) for chosen in every)


Attributes = Iterator[dict[str, Attribute]]


def build_pattern(
    g: Builder, pattern: Pattern, leaves: Mapping[str, Node], chosen: Attributes
) -> tuple[Node, ...]:
    """The nodes of a pattern's results; equal terms are one node."""
    if isinstance(pattern, Several):
        return tuple(build_term(g, pattern.term, alone, chosen, {}) for alone in one_by_one(pattern, leaves))
    made: dict[Term, Node] = {}
    terms = pattern if isinstance(pattern, tuple) else (pattern,)
    build_term(g, terms[-1], leaves, chosen, made)
    return tuple(made[term] for term in terms)


def one_by_one(pattern: Several, leaves: Mapping[str, Node]) -> list[dict[str, Node]]:
    """The variables of each of several, of leaves called `weight`, `weight_1`, ..."""
    shared = {pattern.sharing: leaves[pattern.sharing]}
    own = [name for name in leaves if "_" not in name and name not in shared]
    count = (len(leaves) - 1) // len(own)
    return [shared | {name: leaves[name if i == 0 else f"{name}_{i}"] for name in own} for i in range(count)]


def build_term(
    g: Builder, term: Term, leaves: Mapping[str, Node], chosen: Attributes, made: dict[Term, Node]
) -> Node:
    """The nodes of a term, each with the next chosen attributes that its op knows and those it must have."""
    if term in made:
        return made[term]
    operands = [
        leaves[part] if isinstance(part, str) else build_term(g, part, leaves, chosen, made)
        for part in term.arguments
    ]
    attributes = {name: value for name, value in next(chosen).items() if name in term.op.attributes}
    if "from_dtype" in term.op.attributes:
        attributes["from_dtype"] = operands[0].dtype.name
    if term.op is LINEAR and len(operands) == 3:
        attributes["bias"] = True
    made[term] = g.make(term.op, *operands, **{**attributes, **dict(term.wanted)})
    return made[term]


def n_nodes(pattern: Pattern) -> int:
    """How many nodes `build_pattern` asks for attributes of, and more."""
    term = root_of(pattern)
    return 1 + sum(n_nodes(part) for part in term.arguments if isinstance(part, Term))


def names_of(pattern: Pattern, names: tuple[str, ...], sample: Sample) -> tuple[str, ...] | None:
    """The variables of a pattern, one for each operand of a sample; None where they do not fit."""
    if isinstance(pattern, Several):
        own = [name for name in names if name != pattern.sharing]
        count, rest = divmod(len(sample.inputs) - 1, len(own))
        if rest or count < 2 or bool(sample.attributes.get("bias")) != ("bias" in own):
            return None
        several = [name if i == 0 else f"{name}_{i}" for name in own for i in range(count)]
        return (pattern.sharing, *several)
    return names if len(names) == len(sample.inputs) else None


def candidates(name: str, i: int) -> Iterator[Recipe]:
    """Graphs of a fusion's pattern, for every sample and every way to share out the sample's attributes."""
    fusion = FUSIONS[name]
    pattern, variables = fusion.patterns()[i]
    for sample in fusion.replace.samples():
        names = names_of(pattern, variables, sample)
        if names is None:
            continue
        fills = {variable: (sample, j) for j, variable in enumerate(names)}
        for chosen in product(list(subsets(shares(sample))), repeat=n_nodes(pattern)):
            g = Builder()
            leaves = weights_of(g, fusion.replace, sample, names)
            try:
                with g.scope("layers.0"):
                    results = build_pattern(g, pattern, leaves, cycle(chosen))
            except GraphError:  # these attributes do not fit these operands
                continue
            yield Recipe(g.finish(**as_outputs(results, len(results) > 1)), fills)


def shares(sample: Sample) -> dict[str, Attribute]:
    """What nodes of a pattern may have of a sample's attributes, under the names that plain ops give them."""
    known = {name: value for name, value in sample.attributes.items() if name in PATTERN_ATTRIBUTES}
    if "limit" in sample.attributes:  # of `softcap`, whose two scales have a factor each
        return {"factor": sample.attributes["factor"]}
    return known


PATTERN_ATTRIBUTES = {
    name
    for fusion in FUSIONS.values()
    for ops in fusion.ops()
    for op in ops
    for name in op.attributes
    if name not in ("residual",)
}


def pattern_graph(name: str, i: int) -> Recipe:
    """A graph of a fusion's pattern that the fusion accepts."""
    for recipe in chain(found_in_samples(name, i), candidates(name, i)):
        if fused_by(recipe.graph, name)[1].counts == {name: 1}:
            return recipe
    raise AssertionError(f"no sample of {FUSIONS[name].replace} makes a graph that fusion {name} accepts")


def found_in_samples(name: str, i: int) -> Iterator[Recipe]:
    """The decompositions of samples, fused as far as the pattern wants it."""
    fusion = FUSIONS[name]
    pattern, variables = fusion.patterns()[i]
    for sample in fusion.replace.samples():
        names = names_of(pattern, variables, sample)
        if names is None:
            continue
        g = Builder()
        leaves = weights_of(g, fusion.replace, sample, names)
        assert fusion.replace.decompose is not None
        with g.scope("layers.0"):
            made = fusion.replace.decompose(
                g, *leaves.values(), **{**fusion.replace.attributes, **sample.attributes}
            )
        results = made if isinstance(made, tuple) else (made,)
        recipe = Recipe(
            g.finish(**as_outputs(results, len(results) > 1)),
            {variable: (sample, j) for j, variable in enumerate(names)},
        )
        graph = fuse(recipe.graph, ingredients(fusion.replace) - {fusion.replace})[0]
        if any(find(pattern, node, graph.users()) for node in graph.nodes):
            yield Recipe(unrelated(graph), recipe.fills)


def unrelated(graph: Graph) -> Graph:
    """The graph as if it had been built so: no node comes from another."""
    return rebuild(graph, lambda node: replace(node, origin=()))


def ingredients(op: Op) -> set[Op]:
    """The fused op and those that it is made of."""
    found = {op}
    while True:
        more = {
            part
            for fusion in FUSIONS.values()
            if fusion.replace in found
            for ops in fusion.ops()
            for part in ops
            if part.decompose is not None
        }
        if more <= found:
            return found
        found |= more


def fused_by(graph: Graph, name: str) -> tuple[Graph, FusionLog]:
    """The graph after the fusions that make the same op, those that come last among them."""
    return fuse(graph, {FUSIONS[name].replace}, last=FUSIONS[name].last)


def fuse_all(graph: Graph, wanted: set[Op]) -> tuple[Graph, FusionLog]:
    """First those that do not come last, then those that do."""
    once, log = fuse(graph, wanted)
    twice, more = fuse(once, wanted, last=True)
    return twice, log + more


def with_outputs(graph: Graph, **more: Node) -> Graph:
    return Graph(graph.nodes, {**graph.outputs, **more})


def assert_same_meaning(before: Graph, after: Graph, recipe: Recipe) -> None:
    with np.errstate(all="ignore"):
        wanted, got = interpret(before, recipe.arrays()), interpret(after, recipe.arrays())
    assert wanted.keys() == got.keys()
    for name, value in wanted.items():
        np.testing.assert_array_equal(got[name], value)


def test_fusions_are_found() -> None:
    assert {"rms_norm_mul", "swiglu", "dequant_mul_mat", "mul_mat_bias", "mul_mat_residual"} <= set(FUSIONS)


@pytest.mark.parametrize(("op", "sample"), SAMPLES, ids=sample_ids(SAMPLES))
def test_a_decomposition_is_fused_again(op: Op, sample: Sample) -> None:
    g = Builder()
    names = tuple(f"operand_{i}" for i in range(len(sample.inputs)))
    operands = weights_of(g, op, sample, names)
    assert op.decompose is not None
    attributes = {**op.attributes, **sample.attributes}
    made = op.decompose(g, *operands.values(), **attributes)
    plain = g.finish(**as_outputs(made if isinstance(made, tuple) else (made,), isinstance(made, tuple)))
    fused, counts = fuse_all(plain, ingredients(op))
    (node,) = computed(verify(fused))
    assert node.op is op
    assert node.inputs == tuple(operands.values())
    assert counts.applied
    fills = {name: (sample, i) for i, name in enumerate(names)}
    assert_same_meaning(plain, fused, Recipe(fused, fills))
    assert_same_meaning(plain, expand(fused), Recipe(fused, fills))
    assert [node.name for node in expand(fused).outputs.values()] == [n.name for n in plain.outputs.values()]


def computed(graph: Graph) -> list[Node]:
    """All but leaves and what reads one of several results."""
    return [node for node in inner(graph) if node.op is not part]


@pytest.mark.parametrize(("name", "i"), PATTERNS)
def test_a_pattern_is_rewritten_once_and_keeps_its_provenance(name: str, i: int) -> None:
    recipe = pattern_graph(name, i)
    before = recipe.graph.outputs
    fused, counts = fused_by(recipe.graph, name)
    assert counts.counts == {name: 1}
    (node,) = computed(verify(fused))
    assert counts.applied == (Applied(name, node.name, node.origin),)
    assert not counts.refused
    assert node.op is FUSIONS[name].replace
    assert sorted(node.origin) == sorted(part.name for part in inner(recipe.graph))
    for output, result in fused.outputs.items():
        root = before[output]
        assert (result.name, result.source, result.type) == (root.name, root.source, root.type)
        assert result.origin[0] == root.name
        assert result is node or result.origin == (root.name,)
    assert_same_meaning(recipe.graph, fused, recipe)


@pytest.mark.parametrize(("name", "i"), PATTERNS)
@pytest.mark.parametrize("reader", ["output", "node"])
def test_a_pattern_with_another_reader_inside_is_refused_with_the_reason(
    name: str, i: int, reader: str
) -> None:
    recipe = pattern_graph(name, i)
    results = list(recipe.graph.outputs.values())
    pattern, _ = FUSIONS[name].patterns()[i]
    root = results[0] if isinstance(pattern, Several) else results[-1]
    for inside in (node for node in inner(recipe.graph) if node not in results):
        if reader == "output":
            graph = with_outputs(recipe.graph, extra=inside)
        else:
            g = Builder()
            other = g.scale(g.input("y", inside.dtype, inside.shape), 2.0, name="other")
            other = Node(other.op, (inside,), other.type, other.name, other.attributes)
            graph = Graph((*recipe.graph.nodes, other), {**recipe.graph.outputs, "extra": other})
        fused, counts = fused_by(verify(graph), name)
        if counts.applied:  # a shorter pattern of the same fusion may end at the node that others read
            assert [one.node for one in counts.applied] == [inside.name]
            continue
        assert Refused(name, root.name, f"{inside.name} is read by others too", inside.name) in counts.refused
        assert_same_meaning(graph, verify(fused), recipe)


@pytest.mark.parametrize(("name", "i"), PATTERNS)
def test_a_fusion_that_nobody_wants_is_not_applied(name: str, i: int) -> None:
    graph = pattern_graph(name, i).graph
    assert fuse_all(graph, FUSED - {FUSIONS[name].replace})[1].counts.get(name) is None
    assert inner(fuse(graph, ())[0]) == inner(graph)


def test_quantised_weights_are_taken_as_the_file_has_them() -> None:
    g = Builder(max_tokens=4)
    y = g.mul_mat(g.weight("w", dtype("q4_1"), (8, 32)), g.input("x", F32, (g.n_tokens, 32)))
    fused, counts = fuse(g.finish(y=y), FUSED)
    (node,) = inner(fused)
    assert [source.name for source in node.inputs] == ["w", "x"]
    assert counts.counts == {"dequant_mul_mat": 1}


def row(g: Builder) -> Node:
    return g.weight("bias", F32, (1, 8))


REFUSALS = {
    "swiglu": (lambda g, x, w: g.mul(g.silu(x), w), "w has another shape than x"),
    "rms_norm_mul": (lambda g, x, w: g.rms_norm(x, w, 1e-5), "w is not one row as wide as x"),
    "dequant_mul_mat": (lambda g, x, w: g.mul_mat(g.tanh(w), x), "tanh is not a tensor of the file"),
    "mul_mat_bias": (lambda g, x, w: g.add(g.mul_mat(w, x), row(g)), "bias is not one row of weights"),
    "mul_mat_residual": (lambda g, x, w: g.add(g.mul_mat(w, x), row(g)), "bias has another shape"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_near_misses_are_told(name: str) -> None:
    build, reason = REFUSALS[name]
    g = Builder(max_tokens=4)
    x = g.input("x", F32, (g.n_tokens, 8))
    w = g.weight("w", F32, (8, 8) if "mat" in name else (1, 8))
    _, counts = fuse(g.finish(y=build(g, x, w)), {FUSIONS[name].replace})
    assert name not in counts.counts
    assert any(reason in miss.reason for miss in counts.refused if miss.fusion == name)


@settings(deadline=None)
@given(random_graphs(without=("quantize",)))
def test_random_graphs_keep_their_meaning(recipe: Recipe) -> None:
    fused, _ = fuse_all(recipe.graph, FUSED)
    assert_same_meaning(recipe.graph, verify(fused), recipe)


def without_sources(text: str) -> str:
    return re.sub(r' at "[^"]*":\d+', "", text)


def test_golden_text_of_a_gated_feed_forward() -> None:
    g = Builder(max_tokens=3)
    x = g.input("x", F32, (g.n_tokens, 32))
    gate, up, down = (g.weight(f"{name}.weight", dtype("q8_0"), shape) for name, shape in
                      (("gate", (64, 32)), ("up", (64, 32)), ("down", (32, 64))))  # fmt: skip
    with g.scope("layers.0"):
        hidden = g.mul(g.silu(g.mul_mat(gate, x, "gate")), g.mul_mat(up, x, "up"), "swiglu")
        graph = g.finish(y=g.add(x, g.mul_mat(down, hidden, "down"), "residual"))
    assert without_sources(write(graph)) == (TEXTS / "gated_ffn.before.txt").read_text()
    fused, counts = fuse(graph, FUSED)
    assert without_sources(write(fused)) == (TEXTS / "gated_ffn.after.txt").read_text()
    assert counts.counts == {"dequant_mul_mat": 3, "swiglu": 1, "mul_mat_residual": 1}


def test_reasons_name_the_node_at_which_a_condition_failed() -> None:
    g = Builder(max_tokens=4)
    x, w = g.input("x", F32, (g.n_tokens, 8)), g.weight("w", F32, (1, 8))
    capped = g.scale(g.tanh(g.scale(x, 0.5, 1.0, name="shifted")), 2.0, name="capped")
    relu_capped = g.scale(g.silu(g.scale(x, 0.5), name="no_tanh"), 2.0, name="uncapped")
    _, log = fuse(g.finish(a=capped, b=g.rms_norm(relu_capped, w, 1e-5, "normed")), FUSED)
    assert not log.applied
    assert set(log.refused) == {
        Refused("softcap", "capped", "shifted adds an offset", "shifted"),
        Refused("softcap", "uncapped", "no_tanh is silu; wanted tanh", "no_tanh"),
        Refused("rms_norm_mul", "normed", "w is not one row as wide as uncapped", "w"),
    }


def test_experts_weighted_otherwise_are_refused() -> None:
    g = Builder(max_tokens=4)
    y, w = g.input("y", F32, (g.n_tokens, 3, 3)), g.input("w", F32, (g.n_tokens, 3))
    weighted = g.mul(y, g.reshape(w, 1, 3, name="spread"))
    wrong = g.reshape(g.sum_rows(g.permute(weighted, 0, 2, 1)), 3)
    _, log = fuse(g.finish(y=wrong), FUSED)
    assert [miss.at for miss in log.refused if miss.fusion == "combine_experts"] == ["spread"]


def test_the_longest_match_comes_first_and_what_the_backend_refuses_is_not_made() -> None:
    g = Builder(max_tokens=4)
    gate, up = g.input("gate", F32, (g.n_tokens, 32)), g.input("up", F32, (g.n_tokens, 32))
    graph = g.finish(y=g.make(quantize, g.mul(g.silu(gate), up), dtype="q8_1", name="y"))
    assert fuse(graph, FUSED)[1].counts == {"swiglu": 1, "swiglu_quantize": 1}
    _, log = fuse(graph, FUSED, refuses=lambda n: "too long" if n.op.name == "swiglu_quantize" else None)
    assert log.counts == {"swiglu": 1}
    assert log.refused == (Refused("swiglu_quantize", "y", "the backend refuses it: too long", "y"),)


def test_a_product_alone_is_no_near_miss_of_a_gate() -> None:
    g = Builder(max_tokens=4)
    x, bias = g.input("x", F32, (g.n_tokens, 8)), g.weight("b", F32, (8,))
    product = g.add(g.mul_mat(g.weight("w", F32, (8, 8)), x), bias, "with_bias")
    _, log = fuse(g.finish(y=g.mul(x, product, "gated")), FUSED)
    assert not log.refused  # a mul alone is no near miss of silu(gate) * up


@pytest.mark.parametrize(
    ("switches", "off"),
    [
        ("", set()),
        ("all", set()),
        ("none", set(FUSIONS)),
        ("-swiglu", {"swiglu", "swiglu_quantize", "mul_mat_swiglu"}),
        ("-rms_norm_mul", {"rms_norm_mul", "rms_norm_mul_quantize", "add_rms_norm"}),
        ("-swiglu_quantize", {"swiglu_quantize"}),
        ("-mul_mat_bias", {"mul_mat_bias"}),
        ("all,-swiglu,+swiglu", set()),
        ("none,+swiglu", set(FUSIONS) - {"swiglu"}),
        ("none,+swiglu_quantize", set(FUSIONS) - {"swiglu_quantize", "swiglu"}),
        ("none,+mul_mat_residual", set(FUSIONS) - {"mul_mat_residual", "dequant_mul_mat"}),
        ("none,+qkv,-linear", set(FUSIONS)),
        ("-mul_mat_glu", {name for name in FUSIONS if name.startswith("mul_mat_") and "glu" in name}),
    ],
)
def test_switches(switches: str, off: set[str]) -> None:
    assert switched(switches) == set(FUSIONS) - off


@pytest.mark.parametrize(
    ("switches", "wanted"),
    [
        ("-swiglo", r"no fusion is called 'swiglo'. Did you mean 'swiglu'.*\? Known: .*rms_norm_mul"),
        ("swiglu", r"wanted all, none, \+NAME or -NAME; got 'swiglu'"),
        ("-swiglu,none", "'none' comes first"),
        ("-", "no fusion is called ''"),
    ],
)
def test_wrong_switches_are_told(switches: str, wanted: str) -> None:
    with pytest.raises(UsageError, match=f"^--fuse: {wanted}"):
        switched(switches, "--fuse")


def test_only_the_named_fusions_are_made() -> None:
    g = Builder(max_tokens=4)
    x, w = g.input("x", F32, (g.n_tokens, 8)), g.weight("w", F32, (8,))
    graph = g.finish(y=g.mul(g.silu(x), g.rms_norm(x, w, 1e-5)))
    assert fuse(graph, FUSED, switched("-swiglu"))[1].counts == {"rms_norm_mul": 1}
    assert fuse(graph, FUSED, switched("none"))[1].counts == {}


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


@settings(deadline=None, max_examples=150)
@given(graphs_full_of_patterns())
def test_fused_is_unfused_on_every_backend(
    devices: dict[str, tuple[Backend, Device]], recipe: Recipe
) -> None:
    """Against the reference, in graphs of which half or more is fused."""
    arrays = recipe.arrays()
    with np.errstate(all="ignore"):
        want = interpret(recipe.graph, {name: array.copy() for name, array in arrays.items()})
        fused, log = fuse_all(recipe.graph, FUSED)
        got = interpret(verify(fused), {name: array.copy() for name, array in arrays.items()})
    assume(log.applied)
    for name, value in want.items():
        np.testing.assert_array_equal(got[name], value)
    for backend, device in devices.values():
        # Compilers of GPUs take long, and what is fused is the same: they see a third of the graphs.
        if backend.name not in ("cpu", "reference") and len(recipe.graph.nodes) % 3:
            continue
        for switches in ("all", "none"):
            outputs = run_on(backend, device, recipe, arrays, switches)
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
