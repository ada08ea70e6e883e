"""A trial: several cases in one program, with guards between all values.

Compiling for a GPU takes as long for one kernel as for many, often, so cases share a program, and a program
is run at several sizes. A limit grows with how much the result depends on rounding. Knows the contract of
backends; chooses no cases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from graphml.backend import Backend, Device, State, no_progress, on_device
from graphml.conformance.cases import Case
from graphml.conformance.fill import generator_of, may_be_special, operand, weight
from graphml.conformance.guards import PREFIX, guard, words
from graphml.conformance.verdict import Verdict, judge, limit_of
from graphml.inspect.compare.tolerances import (
    BF16_STEP,
    MOST_BY_ROUNDING,
    ROUNDING_TIMES,
    ROUNDING_TRIES,
    difference,
    makes_int8,
    moved,
    nmse,
    rounds_to_bf16,
)
from graphml.ir.dtype import F32, dtype
from graphml.ir.graph import Graph
from graphml.ir.interpreter import interpret
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.op import Array, Type
from graphml.ir.ops.linear import decode, quantize
from graphml.ir.own_op import OwnOp
from graphml.ir.shape import Shape, fixed, resolve
from graphml.passes.fusions.linear import linear

Compute = Callable[[Mapping[str, Array]], Mapping[str, Array]]
STEP = 2.0**-23
OF_ONE_SUM = ("elementwise", "layout", "index", "leaf")  # families whose results have one rounding each
HALF_AND_HALF = ("gelu", "geglu")  # x / 2 + x / 2 * erf(...), of which the first may cancel the second


def may_grow(nodes: Sequence[Node], error: float) -> bool:
    """Whether the limit for an NMSE of nodes depends on their values: not where they move or store them."""
    if any(map(makes_int8, nodes)):
        return error <= MOST_BY_ROUNDING
    if any(node.op.is_write for node in nodes):
        return False
    return np.isfinite(error) and any(node.op.family not in OF_ONE_SUM or _of_halves(node) for node in nodes)


def grown(
    limit: float, compute: Compute, operands: Mapping[str, Array], nodes: Sequence[Node]
) -> Mapping[str, float]:
    """Name of a result -> the limit of its NMSE for these operands, at least `limit`.

    compute: the results, by name, of operands by name. nodes: those that it computes, the op's last.
    """
    usual = compute(operands)
    if any(map(makes_int8, nodes)) or any(map(rounds_to_bf16, nodes)):
        step = BF16_STEP if any(map(rounds_to_bf16, nodes)) else None
        tries = _again(compute, operands, step)
        return {
            name: max(limit, ROUNDING_TIMES * max(nmse(again[name], value) for again in tries))
            for name, value in usual.items()
        }
    return {
        name: limit * condition
        for name, condition in _squared_conditions(compute, operands, usual, nodes[-1]).items()
    }


def _again(
    compute: Compute, operands: Mapping[str, Array], step: float | None = None
) -> list[Mapping[str, Array]]:
    """The results of operands that are rounded otherwise."""
    results = []
    for seed in range(ROUNDING_TRIES):
        generator = np.random.default_rng(seed)
        by = {} if step is None else {"step": step}
        results.append(compute({name: moved(value, generator, **by) for name, value in operands.items()}))
    return results


def _squared_conditions(
    compute: Compute, operands: Mapping[str, Array], usual: Mapping[str, Array], node: Node
) -> dict[str, float]:
    """Of each result, at least 1."""
    again = _again(compute, operands, STEP)
    terms = _energy(np.prod(list(operands.values()), axis=0)) if _of_halves(node) else 0.0
    conditions = {}
    for name, value in usual.items():
        change = max(_energy(other[name].astype(np.float64) - value) for other in again)
        energy = _energy(value)
        conditions[name] = max(1.0, change / (STEP * STEP / 3) / energy, terms / energy) if energy else 1.0
    return conditions


def _of_halves(node: Node) -> bool:
    return node.op.name.partition("_")[0] in HALF_AND_HALF


def _energy(values: Array) -> float:
    return float(np.sum(np.square(values.astype(np.float64))))


ONE_AFTER_ANOTHER = 1e3  # the second of two exp amplifies the first one's rounding 20 times
OF_PRODUCT = 35  # rows of the weights that a converted value is multiplied with


@dataclass(frozen=True)
class TrialRun:
    """One run of a program: tokens of the step, and whether `NaN` or `infinity` is among its inputs.

    seed: of the inputs' values.
    """

    tokens: int
    special: str = ""
    seed: int = 0

    def __str__(self) -> str:
        seed = f", seed {self.seed}" if self.seed else ""
        return f"T={self.tokens}" + (f" with {self.special}" if self.special else "") + seed


@dataclass(frozen=True)
class Built:
    """A case in a graph: the node of its op, and the outputs and states that are compared."""

    case: Case
    node: Node
    nodes: tuple[Node, ...]
    outputs: Mapping[str, Node]
    copied: Node | None = None


@dataclass(frozen=True)
class Parts:
    """What a case has in its program: names of its leaves, and the guards that its values are next to."""

    inputs: Sequence[str]
    states: Sequence[str]
    weights: Sequence[str]
    guards: Sequence[int]


def build(cases: Sequence[Case]) -> tuple[Graph, list[Built]]:
    """One graph of all the cases; inputs are outputs too, to detect changes of them."""
    g, built = Builder(), []
    outputs: dict[str, Node] = {}
    for i, case in enumerate(cases):
        with g.scope(f"case_{i}"):
            built.append(_add(g, case, i))
        outputs |= built[-1].outputs
    graph = g.finish(**outputs)
    return Graph(graph.nodes, {**graph.outputs, **graph.leaves("input")}), built


def _add(g: Builder, case: Case, i: int) -> Built:
    makers = {"input": g.input, "weight": g.weight, "state": g.state}
    operands = [
        makers[leaf](f"{i}.{j}", kind.dtype, stored_shape(case, j))
        for j, (leaf, kind) in enumerate(zip(case.leaves, case.sample.inputs, strict=True))
    ]
    operands = [_through(g, case, j, operand) for j, operand in enumerate(operands)]
    extra: list[Node] = []
    if case.activation is not None:
        operands[case.converted] = g.call(quantize, operands[case.converted], dtype=case.activation.name)
        extra.append(operands[case.converted])
    copied = None
    if case.inplace >= 0:  # it overwrites the op's own result: no other kernel is to blame
        before = [
            g.state(f"{i}.{j}.copied", operand.dtype, operand.shape) if j == case.op.writes else operand
            for j, operand in enumerate(operands)
        ]
        copied = operands[case.inplace] = g.call(case.op, *before, name=None, **case.sample.attributes)
        extra.append(copied)
    node = g.call(case.op, *operands, name=None, **case.sample.attributes)
    results = list(g.results(node))
    if case.weight:
        (j,) = (j for j, result in enumerate(results) if result.dtype.is_format)
        kind = dtype(case.weight)
        matrix = g.weight(f"{i}.product", kind, (OF_PRODUCT, fixed(results[j].shape[-1])))
        results[j] = g.call(linear, matrix, results[j])
        extra.append(results[j])
    outputs = {} if case.op.is_write else {f"{i}.result_{j}": r for j, r in enumerate(results)}
    return Built(case, node, (*extra, node), outputs, copied)


def stored_shape(case: Case, j: int) -> Shape:
    """The shape of the leaf of an operand, which may reach the op through a view or a permutation."""
    shape = case.sample.inputs[j].shape
    inner = [dim for dim in shape[1:] if isinstance(dim, int)]
    if not case.through or case.leaves[j] != "input" or len(shape) < 2 or len(inner) < len(shape) - 1:
        return shape
    if case.through == "permuted":
        return (*shape, 1) if len(shape) == 2 else (*shape[:-2], shape[-1], shape[-2])
    return (shape[0], 1, shape[1]) if len(shape) == 2 else (shape[0], prod(inner))


def _through(g: Builder, case: Case, j: int, leaf: Node) -> Node:
    """The operand of a leaf: seen through a view, with dimensions permuted, or both."""
    shape = case.sample.inputs[j].shape
    if leaf.shape == shape:
        return leaf
    if case.through == "permuted":
        n = len(leaf.shape)
        leaf = g.permute(leaf, *range(n - 2), n - 1, n - 2)
    return leaf if leaf.shape == shape else g.reshape(leaf, *map(fixed, shape[1:]))


def _as_stored(case: Case, j: int, value: Array, sizes: tuple[int, ...]) -> Array:
    """The array of a leaf, of these sizes, whose operand has this value."""
    if not case.through or value.shape == sizes:
        return value
    permuted = case.through == "permuted" and value.ndim > 2
    return value.swapaxes(-1, -2) if permuted else value.reshape(sizes)


class Trial:
    """A program of several cases on a device. seed: of the weights' values."""

    def __init__(
        self,
        cases: Sequence[Case],
        backend: Backend,
        device: Device,
        limits: str,
        in_arena: bool,
        seed: int = 0,
    ) -> None:
        plain, self.built = build(cases)
        self._limits = limits
        over = {built.node: built.copied for built in self.built if built.copied is not None}
        guarded = guard(plain, device, over, in_arena)
        self.graph, self._neighbours = guarded.graph, guarded.neighbours
        self.refused = [on_device(backend, device).refuses(built.node) for built in self.built]
        self._weights, self._around = self._make_weights(seed)
        self._before = {name: array.copy() for name, array in self._around.items()}
        self._bounds = {name: symbol.bound for name, symbol in self.graph.symbols().items()}
        self._inputs, self._states = self.graph.leaves("input"), self.graph.leaves("state")
        self._own = [self._parts(i) for i in range(len(self.built))]
        self._program = device.lower(self.graph, guarded.plan, self._weights, no_progress)
        self._state: State = device.state(self.graph, self._bounds)

    def run(self, run: TrialRun) -> list[Verdict]:
        """Run once and judge every case."""
        dims = {**self._bounds, "T": run.tokens}
        leaves = self._fill(dims, run)
        with np.errstate(all="ignore"):
            wanted = interpret(
                self.graph, {name: a if name in self._weights else a.copy() for name, a in leaves.items()},
                self._keep_states,
            )  # fmt: skip
            got = {name: np.array(array) for name, array in self._program.run(dims, self._state).items()}
        return [self._judge(i, run, leaves, wanted, got) for i in range(len(self.built))]

    def _keep_states(self, node: Node, value: Array) -> None:
        if node.op.name == "state" or node.op.is_write:
            self._expected_states[_state_of(node)] = value

    def _parts(self, i: int) -> Parts:
        """What is a case's own: a program has up to 32, and each run looks at all of them."""
        leaf, mine = f"{i}.", (f"case_{i}.", f"{i}.")
        return Parts(
            [name for name in self._inputs if name.startswith(leaf)],
            [name for name in self._states if name.startswith(leaf)],
            [name for name in self._around if name.startswith(leaf)],
            [
                k
                for k, (before, after) in enumerate(self._neighbours)
                if before.startswith(mine) or (after.startswith(mine) and before == "the start")
            ],
        )

    def _make_weights(self, seed: int) -> tuple[dict[str, Array], dict[str, Array]]:
        weights, around = {}, {}
        for name, node in self.graph.leaves("weight").items():
            i, _, j = name.partition(".")
            case, index = self.built[int(i)].case, j
            if j == "product":
                kinds = (Type(node.dtype, node.shape),)
                case, index = replace(case, sample=replace(case.sample, inputs=kinds, fill={})), "0"
            generator = generator_of(case, j, resolve(node.shape, {}), seed)
            weights[name], around[name] = weight(case, int(index), generator)
        return weights, around

    def _fill(self, dims: Mapping[str, int], run: TrialRun) -> dict[str, Array]:
        """Values of all leaves; the unused part of inputs is NaN."""
        leaves = dict(self._weights)
        self._expected_states: dict[str, Array] = {}
        for name, node in self._inputs.items():
            if name.startswith(PREFIX):
                value = words()
            else:
                value = self._operand(name, dims, run)
                self._program.inputs[name][...] = np.nan if node.dtype is F32 else 0
            self._program.inputs[name][tuple(slice(n) for n in resolve(node.shape, dims))] = value
            leaves[name] = value
        for name in self._states:
            leaves[name] = self._operand(name, dims, run)
            self._state.array(name)[...] = leaves[name]
        return leaves

    def _operand(self, name: str, dims: Mapping[str, int], run: TrialRun) -> Array:
        i, j, *_ = name.split(".")
        case = self.built[int(i)].case
        generator = generator_of(case, j, resolve(case.sample.inputs[int(j)].shape, dims), run.seed)
        value = operand(case, int(j), dims, generator, run.special if may_be_special(case) else "")
        return _as_stored(case, int(j), value, resolve(stored_shape(case, int(j)), dims))

    def _judge(
        self, i: int, run: TrialRun, leaves: Mapping[str, Array], wanted: Mapping[str, Array],
        got: Mapping[str, Array],
    ) -> Verdict:  # fmt: skip
        """The verdict on a case: its results and states, its operands, and the guards around them."""
        built, max_ulp = self.built[i], 0
        is_own = isinstance(built.case.op, OwnOp) and run.special == ""
        limit, worst, problems = limit_of(built.nodes, self._limits), 0.0, list[str]()
        if built.copied is not None:
            limit *= ONE_AFTER_ANOTHER
        for what, (mine, right) in self._compared(i, wanted, got).items():
            if run.special == "infinity":  # infinity minus infinity is undefined
                mine = _where_sure(mine, right)
            nmse, problem = judge(mine, right, limit)
            usual = not run.special or any(map(rounds_to_bf16, built.nodes))
            if nmse > limit and usual and may_grow(built.nodes, nmse):
                allowed = self._grown_limits(i, limit, leaves).get(what, limit)
                nmse, problem = judge(mine, right, allowed)
                nmse *= limit / allowed  # as if the operands were usual
            worst = max(worst, nmse)
            if is_own and mine.shape == right.shape:
                max_ulp = max(max_ulp, difference(mine, right).max_ulp)
            problems += [f"{what}: {problem}"] if problem else []
        problems += self._damaged(i, leaves, got)
        text = "; ".join(problems)
        case = built.case
        step = f"{run} of at most {self._bounds.get('T', run.tokens)}"
        return Verdict(
            case.name, case.op.name, case.format, case.call, step, worst, limit, text, self.refused[i],
            max_ulp,
        )  # fmt: skip

    def _compared(
        self, i: int, wanted: Mapping[str, Array], got: Mapping[str, Array]
    ) -> dict[str, tuple[Array, Array]]:
        """Name -> the result and the wanted one, as numbers."""
        compared = {}
        missing: Array = np.empty(0, np.float32)
        for name in self.built[i].outputs:
            compared[name.partition(".")[2]] = got.get(name, missing), wanted[name]
        for name in self._own[i].states:
            kind = self._states[name].dtype
            mine, right = np.array(self._state.array(name)), self._expected_states[name]
            if kind.is_format and mine.shape == right.shape:
                mine, right = decode(mine, kind), decode(right, kind)
            compared[f"state {name.partition('.')[2]}"] = mine, right
        return compared

    def _grown_limits(self, i: int, limit: float, leaves: Mapping[str, Array]) -> Mapping[str, float]:
        """The limit of each result of a case for these operands."""
        graph, (alone,) = build([self.built[i].case])
        own = (name for name in leaves if name.startswith(f"{i}."))
        operands = {f"0.{name.partition('.')[2]}": leaves[name] for name in own}

        def compute(leaves: Mapping[str, Array]) -> dict[str, Array]:
            values = interpret(graph, {name: value.copy() for name, value in leaves.items()})
            return {name.partition(".")[2]: values[name] for name in alone.outputs}

        return grown(limit, compute, operands, alone.nodes)

    def _damaged(self, i: int, leaves: Mapping[str, Array], got: Mapping[str, Array]) -> Iterator[str]:
        own = self._own[i]
        for name in own.inputs:
            if name in got and not _same_bits(got[name], leaves[name]):
                yield f"operand {name.partition('.')[2]} was changed"
        for name in own.weights:
            if not np.array_equal(self._around[name], self._before[name]):
                yield f"weight {name.partition('.')[2]} or the bytes around it were changed"
        for k in own.guards:
            hit = np.flatnonzero(~np.isnan(got[f"{PREFIX}{k}"]))
            if hit.size:
                before, after = self._neighbours[k]
                yield (
                    f"wrote out of bounds: {hit.size} of the {words().size} words between {before} "
                    f"and {after}, the first at {4 * int(hit[0])} bytes"
                )


def _state_of(node: Node) -> str:
    """The name of the state that a node is, or that it wrote."""
    while node.op.is_write:
        node = node.inputs[node.op.writes or 0]
    return node.name


def _where_sure(got: Array, wanted: Array) -> Array:
    if got.shape != wanted.shape or got.dtype.kind != "f":
        return got
    return np.where(np.isnan(wanted), wanted, got)


def _same_bits(a: Array, b: Array) -> bool:
    a, b = np.ascontiguousarray(a), np.ascontiguousarray(b)
    return a.shape == b.shape and a.tobytes() == b.tobytes()


def symbols_agree(cases: Sequence[Case]) -> bool:
    """Whether the cases may share a graph: a symbol has one bound there."""
    known: dict[str, int] = {}
    return all(known.setdefault(name, size) == size for case in cases for name, size in case.symbols.items())
