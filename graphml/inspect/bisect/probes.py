"""Probes: steps with extreme values, near zero before norms, large before clamps and caps.

With usual values an eps, a clamp or a cap that a kernel ignores may change too little to be detected. Every
value is computed by the run's own device from such inputs, and then judged like those of any step. Knows
observations and graphs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from graphml.inspect.bisect.judging import Bench, Benches
from graphml.inspect.compare.forced import is_state, unit
from graphml.inspect.compare.observe import ObservedStep
from graphml.ir.fused import decomposition
from graphml.ir.node import Node
from graphml.ir.op import Array, number

LARGE = 100.0  # root mean square of a value before a clamp or cap
NORMS = ("rms_norm", "layer_norm", "l2_norm")


@dataclass(frozen=True)
class Scaling:
    """The scaling of a value. op: the norm before which its rows come near zero; "": it becomes large."""

    op: str = ""
    eps: float = 0.0

    def of(self, values: Array) -> Array:
        """The same values, larger or smaller."""
        wide = values.astype(np.float64)
        if not self.op:
            size = np.sqrt(np.mean(wide * wide, keepdims=True))
            return _times(values, np.maximum(LARGE / np.where(size > 0, size, LARGE), 1.0))
        if self.op == "layer_norm":
            wide = wide - np.mean(wide, axis=-1, keepdims=True)
        size = np.sqrt(np.mean(wide * wide, axis=-1, keepdims=True))
        wanted = np.sqrt(self.eps) if self.op != "l2_norm" else self.eps / (2 * values.shape[-1] ** 0.5)
        return _times(values, np.divide(wanted, size, out=np.ones_like(size), where=size > 0))


def _times(values: Array, factor: Array) -> Array:
    result: Array = (values * factor).astype(values.dtype)
    return result


def probes(steps: Sequence[ObservedStep], benches: Benches) -> list[ObservedStep]:
    """One more step for each graph of one sequence, after its first step; none for a saved run."""
    firsts: dict[int, ObservedStep] = {}
    for step in steps:
        if step.arrays.dims.get("S", 1) == 1:
            firsts.setdefault(id(step.graph), step)
    probed = [_probe(step, benches.of(step)) for step in firsts.values()]
    return [step for step in probed if step is not None]


def _probe(step: ObservedStep, bench: Bench) -> ObservedStep | None:
    scaled = _scaled(bench)
    own = bench.judge.own
    if own is None or not scaled:
        return None
    given_values = {name: step.values[name] for name in bench.given}
    given_values |= {name: scaling.of(given_values[name]) for name, scaling in scaled.items()}
    names = [name for name in bench.ends if _asks(bench, name)]
    changed = replace(
        step, name=f"{step.name} with extreme values", given=given_values, whole=False, unwatched=None
    )
    values = bench.computed(bench.graph, names, bench.given, changed, own)
    return replace(changed, values=values)


def _scaled(bench: Bench) -> dict[str, Scaling]:
    """The values to scale; near zero if both are needed."""
    scalings: dict[str, Scaling] = {}
    for node in bench.graph.nodes:
        scaling = _asked_by(node)
        if scaling is not None:
            for name in _sources(bench, node):
                if name not in scalings or scaling.op:
                    scalings[name] = scaling
    return scalings


def _asked_by(node: Node) -> Scaling | None:
    """The scaling of a node's inputs that makes all of its attributes matter."""
    plain: Iterable[Node] = (node,)
    if node.op.decompose is not None:
        plain = decomposition(node.op, [source.type for source in node.inputs], node.attributes).nodes
    holds = False
    for part in plain:
        if part.op.name in NORMS:
            return Scaling(part.op.name, number(part.attributes, "eps"))
        holds |= part.op.name in ("clamp", "tanh")
        holds |= "softcap" in part.attributes and number(part.attributes, "softcap") > 0
    return Scaling() if holds else None


def _sources(bench: Bench, node: Node) -> set[str]:
    """The given values of floats that a node is computed from."""
    sources: set[str] = set()
    stack = list(node.inputs)
    while stack:
        source = stack.pop()
        if source.name in bench.given:
            if source.dtype.name == "f32":
                sources.add(source.name)
        elif source.op.family != "leaf" and not is_state(source):
            stack.extend(source.inputs)
    return sources


def _asks(bench: Bench, name: str) -> bool:
    """Whether a norm, clamp or cap is judged with a value; other ops may round small values differently."""
    return any(_asked_by(node) is not None for node in unit(bench.graph, name, bench.given))
