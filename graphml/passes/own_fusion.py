"""Fusions of one's own: `fused` makes a fused op of a decomposition, and the fusion that puts it in place.

    @fused(find=lambda x, y: mul(softpick(x), y), samples=[sample(f32(ROWS, 64), f32(ROWS, 64))])
    def softpick_mul(g, x, y, *, eps: float = 1e-6):
        '''softpick(x) * y.'''
        return g.mul(g.softpick(x, eps=eps), y)

Its meaning is the decomposition; backends that have a kernel for it get it, all others the plain ops.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from graphml.ir import op_table
from graphml.ir.fused import fused_op
from graphml.ir.graph import make_graph
from graphml.ir.language import Builder
from graphml.ir.op import Sample
from graphml.ir.own_op import OwnOp
from graphml.ir.own_samples import check_samples, samples_of
from graphml.ir.own_signature import OwnSignature, read_signature
from graphml.passes.fusion import Find, Fusion, add_fusion, fuse
from graphml.passes.rewrite import Match, Refusal


def fused(
    *,
    find: Find,
    samples: Sequence[Sample],
    when: Callable[[Match], str | Refusal | None] = lambda match: None,
    inplace: Sequence[str] = (),
    paper: str = "",
    name: str | None = None,
) -> Callable[[Callable[..., Any]], OwnOp]:
    """Make a decomposition `(g, x, y, *, eps)` a fused op of its name, with the fusion that puts it in place.

    find, when: as in `graphml.passes.fusion.Fusion`; the parameters of `find` are the op's operands, in
    order. samples: inputs to test it with, on which the pattern has to find the decomposition. inplace:
    operands, by name, whose storage the result may have. Raises `GraphError`, with file and line.
    """

    def declare(decompose: Callable[..., Any]) -> OwnOp:
        declared = read_signature(decompose, name, skipped=1)
        kept = samples_of(declared, samples)
        numbers = declared.numbers_of("inplace", inplace)
        plain = fused_op(declared.name, decompose, lambda: list(kept), declared.defaults, numbers)
        op = OwnOp(
            plain.name, plain.family, plain.infer, None, plain.samples, plain.attributes, plain.inplace,
            decompose=decompose, declared=declared, written=(decompose,),
            help=inspect.getdoc(decompose) or "", paper=paper,
        )  # fmt: skip
        check_samples(op, declared)
        fusion = Fusion(op.name, find, op, when)
        _check_pattern(fusion, op, declared)
        op_table.register(op, declared.source, op.is_like)
        add_fusion(fusion)
        return op

    return declare


def _check_pattern(fusion: Fusion, op: OwnOp, declared: OwnSignature) -> None:
    """A pattern that does not find the decomposition of a sample, or finds other operands, is an error."""
    for _, names in fusion.patterns():
        if names != declared.operands:
            declared.fail(f"its pattern has the variables {', '.join(names)}; wanted its operands, in order")
    for number, sample in enumerate(op.samples()):
        g = Builder()
        operands = [g.input(f"operand_{i}", kind.dtype, kind.shape) for i, kind in enumerate(sample.inputs)]
        result = op.decompose(g, *operands, **{**op.attributes, **sample.attributes})  # type: ignore[misc]
        outputs = result if isinstance(result, tuple) else (result,)
        graph = make_graph(g.nodes, {f"result_{i}": node for i, node in enumerate(outputs)})
        after, log = fuse(graph, {op}, known=[fusion])
        nodes = [node for node in after.nodes if node.op is op]
        if len(nodes) != 1:
            reasons = "; ".join([f"sample {number}", *(miss.reason for miss in log.refused)])
            declared.fail(f"its pattern does not find its own decomposition: {reasons}")
        if nodes[0].inputs != tuple(operands):
            declared.fail(f"its pattern finds the operands of sample {number} in another order")
        wanted = {**op.attributes, **sample.attributes}
        if dict(nodes[0].attributes) != wanted:
            declared.fail(f"its fusion makes the attributes {dict(nodes[0].attributes)}; wanted {wanted}")


__all__ = ["fused"]
