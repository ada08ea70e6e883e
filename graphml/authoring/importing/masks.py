"""What an attention's masks hide and add to scores: windows, chunks, ALiBi.

A window that is longer than the traced text hides nothing in it. So masks are computed for a text longer than
each number in their graph; of a mask that a module holds as a table, all is looked at.
Knows values of pairs of positions; nothing of queries and keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphml.authoring.importing.dependence import Dependence
from graphml.authoring.importing.description import TracedNode
from graphml.authoring.importing.evaluation import op_name
from graphml.authoring.importing.region import run, same
from graphml.errors import ArchitectureError
from graphml.loading.huggingface.config_names import SIZES

Array = NDArray[Any]
HIDDEN = -1e4  # a score below it is not seen
LARGEST = 4100  # tokens of a mask that can be looked at
NO_DISTANCE = 1 << 20  # numbers from here on are no distances
DIVIDING = {"div", "true_divide", "floor_divide"}
COUNTING = {
    "lt", "le", "gt", "ge", "eq", "ne", "add", "sub", "rsub", *DIVIDING, "remainder", "fmod", "clamp",
    "clamp_min", "clamp_max", "minimum", "maximum", "triu", "tril",
}  # fmt: skip


def reach(
    dependence: Dependence, node: TracedNode, masks: Sequence[str], causal: bool, zero: Array
) -> tuple[int, int]:
    """Window and chunk: the first token that each one sees, 0 for all.

    causal: whether the op hides later tokens without a mask; zero: scores of a few tokens [T, T, head]
    without their queries and keys.
    """
    tables = [table for name in masks for table in _tables(dependence, name)]
    rows = max((len(table) for table in tables), default=0)
    n = max(dependence.description.length, _largest(dependence, node, masks), min(rows, LARGEST)) + 3
    small = np.isfinite(zero[:, :, 0]) & (zero[:, :, 0] > HIDDEN)
    size = len(small)
    seen = np.tril(np.ones((n, n), bool)) if causal or not masks else np.ones((n, n), bool)
    for name in masks:
        mask = _values(dependence, name, n)
        n = mask.shape[-1]
        visible = mask if mask.dtype == bool else mask > HIDDEN
        if not (visible == visible[:1]).all():
            raise ArchitectureError(f"{node.told}: wanted heads that see the same tokens")
        visible = visible[0]
        if mask.dtype == bool and not np.all(visible[:size, :size] | ~small):
            visible = ~visible  # true for what is hidden
        seen = seen[:n, :n] & visible
    if not np.array_equal(small, seen[:size, :size]):
        seen = seen & np.tril(np.ones((n, n), bool))  # made causal within the products
        if not np.array_equal(small, seen[:size, :size]):
            raise ArchitectureError(f"{node.told}: wanted each token to see itself and those before it")
    span = _span(node, seen)
    if not any(span) and any(len(table) > n and len(np.unique(table[-1])) == 2 for table in tables):
        raise ArchitectureError(
            f"{node.told}: its mask is a table with a window of more than {LARGEST} tokens: too long to know"
        )
    for name in masks:
        _check_bias(node, _values(dependence, name, n), seen)
    return span


def _span(node: TracedNode, seen: Array) -> tuple[int, int]:
    """Window and chunk of the tokens that each one sees."""
    starts, rows = seen.argmax(1), np.arange(len(seen))
    between = (rows[None] >= starts[:, None]) & (rows[None] <= rows[:, None])
    if not np.array_equal(seen, between):
        raise ArchitectureError(
            f"{node.told}: wanted tokens to see those right before them; got another mask"
        )
    if not starts.any():
        return 0, 0
    first = int(np.flatnonzero(starts)[0])
    if np.array_equal(starts, np.maximum(rows - first + 1, 0)):
        return first, 0
    if np.array_equal(starts, rows // first * first):
        return 0, first
    raise ArchitectureError(f"{node.told}: wanted a window or chunks of tokens; got another mask")


def _check_bias(node: TracedNode, mask: Array, seen: Array) -> None:
    """What is added to scores must grow with the distance by the same step everywhere, or be nothing."""
    if mask.dtype == bool or len(seen) < 2:
        return
    rows = np.arange(len(seen))
    distance = np.where(seen, rows[:, None] - rows, 0)
    for head_mask in np.broadcast_to(mask, (len(mask), *seen.shape)):
        added = np.where(seen, head_mask - np.diagonal(head_mask)[:, None], 0.0)
        if not same(added, distance * added[1, 0], 1e-5) and np.max(np.abs(added)) > 1e-9:
            raise ArchitectureError(f"{node.told}: a bias that does not grow evenly with the distance")


def _values(dependence: Dependence, name: str, n: int) -> Array:
    """A mask's values [head, n, n], or of fewer tokens: as many as its smallest table has, or were traced."""
    traced = dependence.description.length
    rows = min((len(table) for table in _tables(dependence, name)), default=0)
    for count in (n, *([rows] if traced < rows < n else []), traced + 3, traced):
        try:
            values = run(dependence, {}, name, count)
        except ArchitectureError:
            if count == traced:
                raise
            continue
        return values.reshape(-1, *values.shape[-2:])[:, :count, :count]
    raise AssertionError("unreachable")


def _largest(dependence: Dependence, node: TracedNode, masks: Sequence[str]) -> int:
    """The largest distance told by the numbers on the way to a mask, below the model's own context."""
    config = dependence.description.config
    context_lengths = [config[name] for name in SIZES["context_length"] if isinstance(config.get(name), int)]
    distances = (each for name in masks for each in _distances(dependence, name))
    largest = max((each for each in distances if each < min(context_lengths, default=NO_DISTANCE)), default=0)
    if largest > max(LARGEST, dependence.description.length):
        raise ArchitectureError(
            f"{node.told}: its mask has numbers for a distance of {largest - 1} tokens: windows that the "
            f"model's code has as numbers are known up to {LARGEST} tokens"
        )
    return largest


def _tables(dependence: Dependence, name: str) -> list[Array]:
    """The tables on the way to a mask that have numbers for pairs of positions: of each the last [n, n]."""
    inputs, values = dependence.description.inputs, dependence.description.values
    leaves = [inputs[before] for before in dependence.description.leading_to(name) if before in inputs]
    held = [values[leaf.name] for leaf in leaves if leaf.kind == "constant"]
    square = [table for table in held if table.ndim > 1 and 1 < table.shape[-1] == table.shape[-2]]
    return [table.reshape(-1, *table.shape[-2:])[-1] for table in square]


def _distances(dependence: Dependence, name: str) -> Iterator[int]:
    """One more than each number in the ops that lead to a value, in tokens.

    A number that meets positions which were divided before is as many times as far.
    """
    nodes, leading = dependence.description.nodes, set(dependence.description.leading_to(name))
    tokens: dict[str, float] = {}  # of a step of a node's values
    for node in (node for node in nodes.values() if node.name in leading):
        numbers = _numbers(dependence, node)
        step = max((tokens.get(each, 1.0) for each in node.operands), default=1.0)
        yield from (ceil((int(number) + 1) * step) for number in numbers.values())
        divides = op_name(node) in DIVIDING and not dependence.is_constant(node.name)
        tokens[node.name] = step * (max(numbers.get("other", 1.0), 1.0) if divides else 1.0)


def _numbers(dependence: Dependence, node: TracedNode) -> dict[str, float]:
    """The sizes of the numbers among an op's arguments that may be distances, by argument."""
    if op_name(node) not in COUNTING:
        return {}
    numbers = {name: _number(dependence, value) for name, value in node.args.items()}
    return {
        name: abs(number)
        for name, number in numbers.items()
        if number is not None and abs(number) < NO_DISTANCE
    }


def _number(dependence: Dependence, value: Any) -> float | None:
    """The number that an argument is, or a constant of one element."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(value)
    name = value.get("node", "") if isinstance(value, dict) else ""
    if name in dependence.kinds and dependence.is_constant(name):
        held = np.asarray(run(dependence, {}, name, dependence.description.length))
        return float(held.reshape(-1)[0]) if held.size == 1 and held.dtype != bool else None
    return None
