"""Refuses what changes with the length of the text, and parameters that have no influence at this length.

A trace has one length's values of conditions such as "longer than the original context". Knows positions;
nothing of what they are used for.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphml.authoring.importing.dependence import Dependence
from graphml.authoring.importing.description import TracedNode
from graphml.authoring.importing.evaluation import is_ignored, op_name
from graphml.authoring.importing.places import ParameterPlace
from graphml.authoring.importing.region import run
from graphml.errors import ArchitectureError

SHORT, LONG = 16, 1 << 14  # tokens for which values of positions are compared
LONGEST = 1 << 20  # tokens for which conditions are


def check_lengths(dependence: Dependence) -> None:
    """ArchitectureError for a value of positions that changes when the text gets longer."""
    nodes = _leading_to(dependence, dependence.description.result)
    for node in nodes:
        if op_name(node) == "where":
            condition = node.operands[0]
            if _is_single(dependence, condition) and _changes(dependence, condition, SHORT, LONGEST):
                raise ArchitectureError(
                    f"{node.told}: chooses by the length of the text, as ropes with other factors for long "
                    "texts do: a file has one choice"
                )
    on_tokens = [node for node in nodes if dependence.on_tokens(node.name)]
    for name in dict.fromkeys(operand for node in on_tokens for operand in node.operands):
        if _is_row_by_row(dependence, name) and _changes(dependence, name, SHORT, LONG):
            raise ArchitectureError(
                f"{dependence.description.nodes[name].told}: its values for the first tokens change with the "
                "length of the text"
            )


def check_all_used(dependence: Dependence, tensors: Sequence[ParameterPlace]) -> None:
    """ArchitectureError for a parameter that some op reads, but none that the logits need at this length."""
    used = {place.parameter for place in tensors}
    needed = {node.name for node in _leading_to(dependence, dependence.description.result)}
    for node in dependence.description.nodes.values():
        for operand in node.operands if node.name not in needed and not is_ignored(node) else ():
            leaf = dependence.description.inputs.get(operand)
            if leaf is not None and leaf.kind == "parameter" and leaf.name not in used:
                raise ArchitectureError(
                    f"{node.told}: {leaf.name} has no influence on the logits of "
                    f"{dependence.description.length} tokens, so what it does cannot be seen"
                )


def _leading_to(dependence: Dependence, result: str) -> list[TracedNode]:
    """The nodes that a value is computed from, in order."""
    leading = set(dependence.description.leading_to(result))
    return [node for name, node in dependence.description.nodes.items() if name in leading]


def _is_single(dependence: Dependence, name: str) -> bool:
    """Whether it is one number, of positions."""
    shape = _shape(dependence, name)
    return (
        shape is not None
        and dependence.is_positions(name)
        and all(size == 1 for size in shape)
        and not _is_of_pairs(dependence, name)
    )


def _is_row_by_row(dependence: Dependence, name: str) -> bool:
    """Whether it has values for each position."""
    shape = _shape(dependence, name)
    return (
        shape is not None
        and dependence.is_positions(name)
        and sum(isinstance(size, str) for size in shape) == 1
        and not _is_of_pairs(dependence, name)
    )


def _is_of_pairs(dependence: Dependence, name: str) -> bool:
    """Whether values of pairs of positions lead to it: too many for long texts."""
    leading = _leading_to(dependence, name)
    return any(sum(isinstance(size, str) for size in node.shape or ()) > 1 for node in leading)


def _shape(dependence: Dependence, name: str) -> tuple[int | str, ...] | None:
    node = dependence.description.nodes.get(name)
    return None if node is None else node.shape


def _changes(dependence: Dependence, name: str, short: int, long: int) -> bool:
    """Whether the values that a short text has are others in a long one."""
    try:
        few, many = (np.asarray(run(dependence, {}, name, count)) for count in (short, long))
    except ArchitectureError:
        return False  # a table that is shorter than the long text
    if few.ndim != many.ndim:
        return False
    common = many[tuple(slice(extent) for extent in few.shape)]
    return common.shape == few.shape and not np.allclose(few, common, rtol=1e-9, atol=1e-12)
