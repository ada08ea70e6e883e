"""The assembly of all families of kernels that multiply weights: `list_families.py LEVEL all|dot|some`.

A process of its own per level; prints JSON. A family is a kernel factory. Families are found by lowering the
samples of every op, and products with weights of every format; one kernel stands for each family and kind of
product; `some` is three of `dot`.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from itertools import product

import graphml_quant
from graphml_cpu import target
from graphml_cpu.compiler import KernelRef
from kept_listings import listing

from graphml.errors import GraphError
from graphml.ir.dtype import DType, dtype
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.op import Op, Sample, Type
from graphml.ir.ops.linear import quantize
from graphml.ir.shape import Symbol
from graphml.passes.fusion import all_ops

# Whom each family is compiled for, if it has one of these among its arguments.
PREFERRED = ("q4_0", "f16")
FLOATS = ("f32", "bf16")
_K = 256  # a multiple of every format's block
PRODUCTS = ("mul_mat", "linear")
KINDS = {"q8_1": "dot", "bf16": "bf16"}  # of converted activations
SOME = ("make_mul_mat_rows", "make_mul_mat_tiles", "make_mul_mat_id_packed")


def _moves(kind: Type) -> bool:
    return any(isinstance(dim, Symbol) for dim in kind.shape)


def _make(op: Op, sample: Sample, weight: DType | None, tokens: int, activation: DType | None) -> Node:
    """A node of the sample's kind: with a weight of another format and as many tokens."""
    g, operands = Builder(), []
    shapes = [kind.shape for kind in sample.inputs]
    moving = list(map(_moves, sample.inputs))
    weights = [i for i, shape in enumerate(shapes) if weight is not None and len(shape) > 1 and not moving[i]]
    x = moving.index(True)
    for i, kind in enumerate(sample.inputs):
        shape = tuple(Symbol("T", tokens) if isinstance(dim, Symbol) else dim for dim in kind.shape)
        if weights and i in (x, *weights):
            shape = (*shape[:-1], _K)
        form = weight if i in weights and weight is not None else kind.dtype
        make = g.state if op.writes == i else g.weight if i in weights else g.input
        operand = make(f"operand_{i}", form, shape)
        if i == x and activation is not None:
            operand = g.call(quantize, operand, dtype=activation.name)
        operands.append(operand)
    return g.call(op, *operands, name=None, **sample.attributes)


def _nodes() -> Iterator[Node]:
    from graphml_cpu.lowering import table
    from graphml_cpu.lowering.linear import activation

    weights = [None, *(dtype(name) for name in graphml_quant.formats())]
    few = [None, *(dtype(name) for name in (*PREFERRED, *FLOATS))]
    for name, lowering in table().items():
        op = all_ops()[name]
        if not name.startswith(PRODUCTS):
            continue
        samples = [sample for sample in op.samples() if any(map(_moves, sample.inputs))]
        # A lowering looks at the format or at the sample's form, not at both of them.
        pairs = [*product(samples[:1], weights), *product(samples[1:], few)]
        for (sample, weight), tokens in product(pairs, (1, 5)):
            converted = {None} if weight is None else {None, activation(weight)}
            for kind in converted:
                with contextlib.suppress(GraphError):
                    node = _make(op, sample, weight, tokens, kind)
                    if lowering.refuses(node) is None:
                        yield node


def families() -> dict[tuple[str, str], KernelRef]:
    """(factory, kind) -> a kernel: `dot` where activations in int8 come in, `bf16` those, else `fma`."""
    from graphml_cpu.lowering import table

    found: dict[tuple[str, str], list[KernelRef]] = {}
    for node in _nodes():
        converted = [source.dtype.name for source in node.inputs if source.op is quantize]
        kind = KINDS[converted[0]] if converted else "fma"
        for step in table()[node.op.name].lower(node, 2):
            if not any(word in step.kernel.factory for word in PRODUCTS):
                continue  # what is done to the product then
            called = [kernel for _, kernel in step.kernel.calls if kernel is not None]
            for kernel in called or [step.kernel]:
                found.setdefault((kernel.factory, kind), []).append(kernel)

    def rank(ref: KernelRef) -> tuple[int, bool]:
        place = next((i for i, name in enumerate(PREFERRED) if name in ref.arguments), len(PREFERRED))
        return place, True in ref.arguments  # a switch for one token leaves the tiles out

    return {family: min(refs, key=rank) for family, refs in found.items()}


def main() -> None:
    level, wanted = sys.argv[1:]
    target.compile_for(level)
    listings = []
    for (factory, kind), ref in families().items():
        if wanted not in ("all", kind) and not (wanted == "some" and kind == "dot" and factory in SOME):
            continue
        listings.append({"family": factory, "kind": kind, "kernel": ref.name, "assembly": listing(ref)})
    json.dump(listings, sys.stdout)


if __name__ == "__main__":
    main()
