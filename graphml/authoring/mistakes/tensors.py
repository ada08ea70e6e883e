"""Unused tensors: biases, scales and an output matrix of the file that the graph does not use."""

from __future__ import annotations

from collections.abc import Iterator

from graphml.authoring.mistakes.edit import (
    EditSource,
    Mistake,
    Places,
    Try,
    leaf,
    made,
    product_of,
    stem,
    tensor_of,
)
from graphml.ir.node import Node
from graphml.ir.op import Op
from graphml.ir.ops import elementwise, linear


def _beside(model: EditSource, kind: str, op: Op, says: str) -> Iterator[Try]:
    """The unused `.bias` or `.scale` of products: all of them, then each kind alone."""
    unused = {name for name in model.unused if name.endswith(f".{kind}") and "norm" not in name}
    places = Places.of(model.graph)
    known = {name.rpartition(".")[0] for name in places.last}
    stems = sorted({stem(name) for name in unused if name.rpartition(".")[0] in known})
    for group in ([stems] if stems else []) + ([[alone] for alone in stems] if len(stems) > 1 else []):

        def change(node: Node, group: list[str] = group) -> Node | None:
            name = product_of(node)
            if name is None or places.last.get(name) != node.name:
                return None
            other = f"{name.rpartition('.')[0]}.{kind}"
            if other not in unused or stem(other) not in group:
                return None
            return made(op, node, leaf(model, other), like=node)

        yield Try(f"{', '.join(group)} without -> with {says}", change)


def _biases(model: EditSource) -> Iterator[Try]:
    yield from _beside(model, "bias", elementwise.add, "the file's bias")


def _scales(model: EditSource) -> Iterator[Try]:
    yield from _beside(model, "scale", elementwise.mul, "the file's scale")


def _output(model: EditSource) -> Iterator[Try]:
    """Logits from the embedding although the file has an output matrix."""

    def change(node: Node) -> Node | None:
        if node.op.name != "mul_mat" or tensor_of(node.inputs[0]) != "token_embd.weight":
            return None
        return made(linear.mul_mat, leaf(model, "output.weight"), node.inputs[1], like=node)

    if "output.weight" in model.unused:
        yield Try("logits by token_embd -> by output", change)


MISTAKES = (
    Mistake("bias-forgotten", "a bias of the file is not added", _biases),
    Mistake("scale-forgotten", "a scale of the file is not multiplied with", _scales),
    Mistake(
        "output-forgotten", "logits come from the embedding where the file has an output matrix", _output
    ),
)
