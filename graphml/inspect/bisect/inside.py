"""Looks inside a wrong node: tests the parts of its decomposition, and describes its wrong value.

Knows graphs, arrays and devices; nothing of whole models.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from graphml.backend import Device
from graphml.errors import GraphmlError
from graphml.inspect.compare.forced import (
    GIVEN,
    OUTPUT,
    LeafArrays,
    changer,
    forced,
    is_state,
    observed,
    run,
    shown,
    unquantized,
)
from graphml.inspect.compare.tolerances import ArrayDifference, difference, nmse, spans, tolerance
from graphml.ir.graph import Graph
from graphml.ir.node import Node
from graphml.ir.op import Array
from graphml.passes.expand import expand

ALIKE = 1e-6  # NMSE below which a wrong value counts as equal to another


@dataclass(frozen=True)
class DecomposedNode:
    """A plain node of a decomposition, computed by the run's backend from right inputs."""

    node: Node
    difference: ArrayDifference
    limit: float

    @property
    def wrong(self) -> bool:
        """Whether it is wrong by itself too."""
        return self.difference.nmse > self.limit


@dataclass(frozen=True)
class Inside:
    """The results.

    parts: of the decomposition, empty for a plain node. parts_mean_the_same: whether they compute the
    expected value on the judge's backend. hints: descriptions of the wrong value, in words.
    """

    parts: tuple[DecomposedNode, ...]
    parts_mean_the_same: bool
    hints: tuple[str, ...]


def look_inside(
    graph: Graph, other: Graph, arrays: LeafArrays, got: Array, own: Device, judge: Device
) -> Inside:
    """Test the parts of a unit. graph: its output is `result`; other: the right one; got: the wrong value."""
    if not graph.nodes:
        return Inside((), False, ())
    plain = expand(graph)
    right = run(judge, observed(plain), arrays)[0]
    wanted = run(judge, other, arrays)[0]["result"]
    fused = any(node.op.decompose is not None for node in graph.nodes)
    exact = unquantized(graph)
    parts: tuple[DecomposedNode, ...] = ()
    hints = _hints(plain, right, got, wanted)
    try:
        if fused:
            parts = _parts(expand(exact), arrays, own, judge)
        if any(node.dtype.numpy is None and node.inputs for node in graph.nodes):
            hints.append(_without_int8(graph, exact, arrays, own, judge))
    except GraphmlError:  # the backend may refuse another backend's graph
        pass
    same = fused and nmse(right[OUTPUT + "result"], wanted) <= tolerance(plain.nodes)
    return Inside(parts, same, tuple(hints))


def _without_int8(graph: Graph, exact: Graph, arrays: LeafArrays, own: Device, judge: Device) -> str:
    """The result without quantised activations: is the conversion wrong, or an op after it?"""
    got, wanted = (run(device, exact, arrays)[0]["result"] for device in (own, judge))
    error = nmse(got, wanted)
    blocks = [f"{n.name} ({n.op.name})" for n in graph.nodes if n.dtype.numpy is None and n.inputs]
    if error > tolerance(exact.nodes):
        return f"with activations in float32 it is wrong too: NMSE {error:.1e}"
    return f"with activations in float32 it is right: suspect {', '.join(blocks)} or the integer product"


def _parts(plain: Graph, arrays: LeafArrays, own: Device, judge: Device) -> tuple[DecomposedNode, ...]:
    right = run(judge, observed(plain), arrays)[0]
    given_names = {node.name for node in shown(plain) if not is_state(node)}
    inputs = {**arrays.inputs, **{GIVEN + name: right[name] for name in given_names}}
    got = run(own, forced(plain, given_names), replace(arrays, inputs=inputs))[0]
    return tuple(
        DecomposedNode(node, difference(got[node.name], right[node.name]), tolerance([changer(plain, node)]))
        for node in shown(plain)
    )


def _hints(plain: Graph, right: dict[str, Array], got: Array, wanted: Array) -> list[str]:
    hints = [where(got, wanted)]
    result = plain.outputs["result"]
    for node in shown(plain):
        value = right[node.name]
        if (
            node is not result
            and not node.op.view
            and value.size == wanted.size
            and _alike(got, value.reshape(got.shape))
        ):
            hints.append(f"it is the value of {node.name} ({node.op.name}): what follows that is missing")
    for by in (1, -1):
        if len(got) > 2 and _alike(
            got[max(by, 0) : len(got) + min(by, 0)],
            np.roll(wanted, by, 0)[max(by, 0) : len(got) + min(by, 0)],
        ):
            hints.append(f"row i is row i {'-' if by > 0 else '+'} 1 of the right value")
    ratio = _ratio(got, wanted)
    if ratio is not None:
        hints.append(f"it is the right value times {ratio:.6g}")
    return hints


def _alike(a: Array, b: Array) -> bool:
    return a.dtype == b.dtype and bool(np.any(b)) and nmse(a, b) < ALIKE


def _ratio(got: Array, wanted: Array) -> float | None:
    x, y = got.astype(np.float64).ravel(), wanted.astype(np.float64).ravel()
    energy = float(y @ y)
    if not energy or not np.isfinite(x).all():
        return None
    factor = float(x @ y) / energy
    rest = float(np.sum((x - factor * y) ** 2))
    error = float(np.sum((x - y) ** 2))
    return factor if rest < 1e-4 * error and factor else None


def where(got: Array, wanted: Array) -> str:
    """The wrong elements: how many, and their rows and columns."""
    a, b = got.astype(np.float64), wanted.astype(np.float64)
    a, b = (
        a.reshape(len(a), -1) if a.ndim else a.reshape(1, 1),
        b.reshape(len(b), -1) if b.ndim else b.reshape(1, 1),
    )
    scale = float(np.sqrt(np.mean(b[np.isfinite(b)] ** 2))) if np.isfinite(b).any() else 0.0
    with np.errstate(invalid="ignore"):  # infinity less infinity
        off = np.abs(a - b)
    wrong = ~(off <= 1e-5 * max(scale, 1e-30)) & ~((a == b) | (np.isnan(a) & np.isnan(b)))
    rows, columns = np.flatnonzero(wrong.any(1)), np.flatnonzero(wrong.any(0))
    return (
        f"{wrong.sum()} of {wrong.size} elements are wrong, in rows {spans(rows)} of {len(a)}, "
        f"columns {spans(columns)} of {a.shape[1]}"
    )
