"""Faults to plant: kernels that compute something else, fusions that mean something else.

Each is a context: within it graphml is broken in one way, after it whole again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
from graphml_cpu import lowering, program
from graphml_cpu.lowering.step import Argument, CpuLowering, KernelCall

from graphml.compiler import parts_program
from graphml.ir.fused import fused_op
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.op import Array
from graphml.passes import fusion
from graphml.passes.fusion import Fusion


@contextmanager
def wrong_lowering(op: str, change: Callable[[Node, list[KernelCall]], list[KernelCall]]) -> Iterator[None]:
    """The CPU's kernel calls for an op, changed."""
    right = lowering.table()[op]

    def lower(node: Node, threads: int) -> list[KernelCall]:
        return change(node, right.lower(node, threads))

    with mock.patch.dict(lowering.table(), {op: replace(right, lower=lower)}):
        yield


def with_arguments(
    **changed: Argument | Callable[[Node], Argument],
) -> Callable[[Node, list[KernelCall]], list[KernelCall]]:
    """Other arguments of every kernel call that has them."""

    def change(node: Node, steps: list[KernelCall]) -> list[KernelCall]:
        made = []
        assert any(name in step.arguments for step in steps for name in changed)
        for step in steps:
            given = {
                name: value(node) if callable(value) else value
                for name, value in changed.items()
                if name in step.arguments
            }
            made.append(replace(step, arguments={**step.arguments, **given}))
        return made

    return change


def as_if(**attributes: object) -> Callable[[Node, list[KernelCall]], list[KernelCall]]:
    """The kernel calls of the same node with other attributes."""

    def change(node: Node, steps: list[KernelCall]) -> list[KernelCall]:
        right: CpuLowering = lowering.table.__wrapped__()[node.op.name]
        other = replace(node, attributes={**node.attributes, **attributes})  # type: ignore[dict-item]
        wrong = right.lower(other, 1)
        names = {other: node}
        return [
            replace(
                step,
                arguments={
                    name: names.get(value, value) if isinstance(value, Node) else value
                    for name, value in step.arguments.items()
                },
            )
            for step in wrong
        ]

    return change


Change = Callable[[Node, Array, Mapping[str, Array]], Array]
"""From a node, its right value and its operands by name to what comes instead."""


@contextmanager
def wrong_values(op: str, change: Change) -> Iterator[None]:
    """The CPU computes an op in NumPy, and then something else; several such faults may be nested."""
    before = program.evaluate

    def wrong(node: Node, values: Mapping[Node, Array]) -> Array:
        right = before(node, values)
        if node.op.name != op:
            return right
        return change(node, right, {source.name: array for source, array in values.items()})

    table = {name: one for name, one in lowering.table().items() if name != op}
    with mock.patch.dict(lowering.table(), table, clear=True), mock.patch.object(program, "evaluate", wrong):
        yield


def off_where(chosen: Callable[[Mapping[str, Array], int], Any], by: float = 1.01) -> Change:
    """Values a little off in some rows: `chosen` of the operands and the number of rows."""

    def change(node: Node, right: Array, operands: Mapping[str, Array]) -> Array:
        wrong = right.copy()
        rows = np.zeros(len(right), bool)
        rows[...] = chosen(operands, len(right))
        wrong[rows] *= np.float32(by)
        return wrong

    return change


@contextmanager
def wrong_copy(value: str) -> Iterator[None]:
    """The last row of a value is lost where it is copied between devices."""
    right = parts_program.PartsProgram.__init__

    class WrongLink(parts_program._Link):
        def window(self, dims: Mapping[str, int]) -> Array:
            array = super().window(dims)
            array[-1:] = 0
            return array

    def made(self: parts_program.PartsProgram, *arguments: Any) -> None:
        right(self, *arguments)
        link = self._crossing.get(value)
        if link is not None:
            self._crossing[value] = self._links[value] = WrongLink(link.shape, link.array)

    with mock.patch.object(parts_program.PartsProgram, "__init__", made):
        yield


@contextmanager
def fusions_as(change: Callable[[Mapping[str, Fusion]], Mapping[str, Fusion]]) -> Iterator[None]:
    """The table of fusions, changed."""
    table = fusion.fusions()
    assert isinstance(table, dict)
    with mock.patch.dict(table, change(table)):
        yield


def wrong_decomposition(name: str, decompose: Callable[..., Node]) -> Callable[..., Mapping[str, Fusion]]:
    """A fusion whose op says that it means something else."""

    def change(table: Mapping[str, Fusion]) -> Mapping[str, Fusion]:
        right = table[name]
        op = fused_op(
            right.replace.name, decompose, right.replace.samples, right.replace.attributes,
            right.replace.inplace,
        )  # fmt: skip
        return {**table, name: replace(right, replace=op)}

    return change


def up_and_gate(g: Builder, gate: Node, up: Node) -> Node:
    """Swiglu with its operands swapped."""
    return g.mul(gate, g.silu(up))
