"""Rows of all tokens and heads in one dimension, as dimensions of their own again: [T * N, H] is [T, N, H].

Classes flatten them for norms of each head. Only where the tokens come before the heads, and where what is
done in between works on rows or numbers. Knows a description; nothing of models.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from graphml.authoring.importing.aten import BINARY, SAME, UNARY
from graphml.authoring.importing.description import TracedModule, TracedNode
from graphml.authoring.importing.evaluation import is_ignored, op_name

PRODUCT = re.compile(r"(?:(\d+)\*(\w+)|(\w+)\*(\d+))$")
VIEWS = ("view", "_unsafe_view", "reshape")
BY_NUMBER = (
    *UNARY,
    *(name for name in BINARY if name != "matmul"),
    *SAME,
    "add",
    "sub",
    "div",
    "pow",
    "rsub",
)
OVER_LAST = ("mean", "sum", "softmax", "_softmax")


def split_tokens(description: TracedModule) -> TracedModule:
    """The description with these dimensions apart, where that can be done for all that is read together."""
    nodes = dict(description.nodes)
    flat = {name: at for name, node in nodes.items() if (at := _flat_at(node.shape or ())) is not None}
    for group in _groups(nodes, flat):
        replaced = {name: _split(nodes, nodes[name], flat) for name in group}
        readers = [
            node
            for node in nodes.values()
            if node.name not in group and not is_ignored(node) and set(node.operands) & set(group)
        ]
        if None not in replaced.values() and all(op_name(node) in VIEWS for node in readers):
            nodes |= {name: node for name, node in replaced.items() if node is not None}
    return replace(description, nodes=nodes)


def _flat_at(shape: Sequence[int | str]) -> tuple[int, str, int] | None:
    """The dimension that counts tokens times something, the name of the tokens, and how many times."""
    listed = [(i, size) for i, size in enumerate(shape) if isinstance(size, str)]
    match = PRODUCT.match(listed[0][1]) if len(listed) == 1 else None
    if match is None:
        return None
    return listed[0][0], match[2] or match[3], int(match[1] or match[4])


def _groups(nodes: Mapping[str, TracedNode], flat: Mapping[str, Any]) -> list[list[str]]:
    """Nodes that read each other, of those with such a dimension."""
    group_of: dict[str, list[str]] = {}
    for name in flat:
        group = [name]
        for operand in nodes[name].operands:
            if operand in group_of and group_of[operand] is not group:
                group = [*group_of[operand], *group]
        for member in group:
            group_of[member] = group
    return [list(dict.fromkeys(group)) for group in {id(each): each for each in group_of.values()}.values()]


def _split(
    nodes: Mapping[str, TracedNode], node: TracedNode, flat: Mapping[str, tuple[int, str, int]]
) -> TracedNode | None:
    """The same node with tokens and heads apart; None where it may be something else."""
    (at, tokens, count), shape, name = flat[node.name], list(node.shape or ()), op_name(node)
    apart = (*shape[:at], tokens, count, *shape[at + 1 :])
    if name in VIEWS:
        before = nodes[node.operands[0]].shape if node.operands[0] in nodes else None
        if before is None or (
            node.operands[0] not in flat and not _is_token_first(before, shape, at, tokens)
        ):
            return None
        size = [-1 if isinstance(each, str) else each for each in apart]
        args = {"self": node.args["self"], "size": size}
        return replace(node, op="aten.view.default", args=args, shape=apart)
    reads_others = any(
        operand not in flat
        and len(nodes[operand].shape or () if operand in nodes else ()) > len(shape) - at - 1
        for operand in node.operands
        if operand in nodes
    )
    if reads_others or (
        name not in BY_NUMBER and name not in OVER_LAST and name not in ("layer_norm", "rms_norm")
    ):
        return None
    args = dict(node.args)
    if name in OVER_LAST:
        dims = args.get("dim")
        dim = dims[0] if isinstance(dims, list) and len(dims) == 1 else dims
        if dim not in (-1, len(shape) - 1) or at == len(shape) - 1:
            return None
        args["dim"] = [-1] if isinstance(dims, list) else -1
    return replace(node, args=args, shape=apart)


def _is_token_first(before: Sequence[int | str], after: Sequence[int | str], at: int, tokens: str) -> bool:
    """Whether a view joins the tokens with the dimensions right behind them, and leaves the others alone."""
    if tokens not in before:
        return False
    first = list(before).index(tokens)
    others = [size for size in before[:first] if size != 1], [size for size in after[:at] if size != 1]
    return others[0] == others[1] and all(isinstance(size, int) for size in before[first + 1 :])
