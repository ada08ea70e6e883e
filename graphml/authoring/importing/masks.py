"""Masks of a traced attention: which tokens each one sees, by running them, as windows and chunks.

A mask is a function of positions: it is run on all positions of some texts, and on far ones alone where its
ops work on each pair by itself. Knows pairs of tokens; nothing of queries, keys or layouts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphml.authoring.importing.aten import BINARY, UNARY
from graphml.authoring.importing.dependence import Dependence
from graphml.authoring.importing.description import TracedNode
from graphml.authoring.importing.evaluation import Evaluator, op_name
from graphml.authoring.importing.region import run, same
from graphml.errors import ArchitectureError
from graphml.loading.huggingface.config_names import SIZES

Array = NDArray[Any]
BIASED = 1 << 13  # far positions of masks that are numbers end here: half of it is less than what hides
HIDDEN = -1e4  # a score below it is not seen
LARGEST = 4100  # tokens of a mask that can be looked at
NO_DISTANCE = 1 << 20  # numbers from here on are no distances
FURTHEST, MOST, FIRST = 1 << 20, 600, range(16)  # far positions: their end, their count, those before them
DIVIDING = {"div", "true_divide", "floor_divide"}
COUNTING = {
    "lt", "le", "gt", "ge", "eq", "ne", "add", "sub", "rsub", *DIVIDING, "remainder", "fmod", "clamp",
    "clamp_min", "clamp_max", "minimum", "maximum", "triu", "tril",
}  # fmt: skip
# Each element of what these make is of one pair of positions, or the same for all.
BY_PAIR = {
    *BINARY, *UNARY, *COUNTING, "where", "masked_fill", "unsqueeze", "view", "reshape", "_unsafe_view",
    "expand", "expand_as", "permute", "transpose", "squeeze", "to", "_to_copy", "type_as", "clone", "full",
    "ones", "zeros", "new_ones", "new_zeros", "new_full", "full_like", "ones_like", "zeros_like", "alias",
    "scalar_tensor", "contiguous", "detach", "lift_fresh_copy", "pow",
} - {"matmul"}  # fmt: skip


def reach(
    dependence: Dependence, node: TracedNode, masks: Sequence[str], causal: bool, zero: Array
) -> tuple[int, int]:
    """Window and chunk: the first token that each one sees, 0 for all.

    causal: whether the op hides later tokens without a mask; zero: scores of a few tokens [T, T, head]
    without their queries and keys.
    """
    tables = [table for name in masks for table in _tables(dependence, name)]
    rows = max((len(table) for table in tables), default=0)
    numbers = sorted({each for name in masks for each in _distances(dependence, name)} - {0})
    far = _far_positions(dependence, numbers)
    far_masks = [_values_at(dependence, name, far) for name in masks]
    if any(
        mask is not None and mask.dtype != bool for mask in far_masks
    ):  # a bias may hide as a mask, far away
        far = far[far < BIASED]
        far_masks = [_values_at(dependence, name, far) for name in masks]
        if max(numbers, default=0) >= BIASED:
            far_masks = [None for _ in masks]
    is_near = any(mask is None for mask in far_masks)  # only texts of all positions can be looked at
    if is_near:
        _check_numbers(dependence, node, numbers)
    most = max((number for number in numbers if number <= LARGEST), default=0)
    n = max(_traced(dependence), min(rows, LARGEST), min(2 * most, LARGEST) if is_near else most) + 3
    small = np.isfinite(zero[:, :, 0]) & (zero[:, :, 0] > HIDDEN)
    size = len(small)
    seen = np.tril(np.ones((n, n), bool)) if causal or not masks else np.ones((n, n), bool)
    far_seen = far[:, None] >= far
    for name, far_mask in zip(masks, far_masks, strict=True):
        mask = _values(dependence, name, n)
        n = mask.shape[-1]
        visible = _visible(node, mask)
        is_hidden = mask.dtype == bool and not np.all(visible[:size, :size] | ~small)  # what true stands for
        seen = seen[:n, :n] & (visible ^ is_hidden)
        if far_mask is not None:
            far_seen = far_seen & (_visible(node, far_mask) ^ is_hidden)
    if not np.array_equal(small, seen[:size, :size]):
        seen = seen & np.tril(np.ones((n, n), bool))  # made causal within the products
        if not np.array_equal(small, seen[:size, :size]):
            raise ArchitectureError(f"{node.told}: wanted each token to see itself and those before it")
    span = _span(node, seen)
    if not any(span) and any(len(table) > n and len(np.unique(table[-1])) == 2 for table in tables):
        raise ArchitectureError(
            f"{node.told}: its mask is a table with a window of more than {LARGEST} tokens: too long to know"
        )
    if masks and not is_near:
        span = _far_span(node, span, far, far_seen, numbers)
    for name, far_mask in zip(masks, far_masks, strict=True):
        _check_bias(node, _values(dependence, name, n), seen, np.arange(len(seen)))
        if far_mask is not None:
            _check_bias(node, far_mask, far_seen, far)
    return span


def _visible(node: TracedNode, mask: Array) -> Array:
    """Which pairs a mask [head, n, n] shows, or hides where it is of truth values."""
    visible: Array = mask if mask.dtype == bool else mask > HIDDEN
    if not (visible == visible[:1]).all():
        raise ArchitectureError(f"{node.told}: wanted heads that see the same tokens")
    shown: Array = visible[0]
    return shown


def _far_positions(dependence: Dependence, numbers: Sequence[int]) -> Array:
    """The first positions, some at random up to the context's end, and those that lie a number before any."""
    end = min(FURTHEST, _context(dependence))
    generator = np.random.default_rng(7)
    most = numbers[-6:]
    ends = {
        *FIRST,
        *numbers,
        *map(int, generator.integers(0, end, 24)),
        *(a + b for a in most for b in numbers),
    }
    far = {at - number + step for at in ends for number in (0, *most) for step in (-1, 0, 1)} - {*FIRST}
    chosen = generator.permutation(sorted(at for at in far if 0 <= at < end))[:MOST]
    return np.array(sorted({*(at for at in FIRST if at < end), *map(int, chosen)}))


def _values_at(dependence: Dependence, name: str, positions: Array) -> Array | None:
    """A mask's values [head, n, n] for pairs of these positions; None if its ops do more."""
    nodes, leading = dependence.description.nodes, set(dependence.description.leading_to(name))
    n = len(positions)
    evaluator = Evaluator(dependence.description, dependence.description.with_ids(np.zeros(n, np.int64)))
    whole = dependence.description.with_ids(np.zeros(int(positions[-1]) + 1, np.int64))
    of_rows = Evaluator(dependence.description, whole)  # of values of one position each
    try:
        for node in (node for node in nodes.values() if node.name in leading):
            if not dependence.is_positions(node.name) or not node.shape:
                continue
            op, operand = op_name(node), node.args.get("self")
            source = str(operand["node"]) if isinstance(operand, dict) and "node" in operand else ""
            if op == "arange":
                counted = np.asarray(evaluator.value(node.name))
                if not np.array_equal(counted, np.arange(n) + counted[:1]):
                    return None
                evaluator.held[node.name] = positions + counted[0]
            elif op in ("tril", "triu") and all(isinstance(size, str) for size in node.shape[-2:]):
                above = positions - positions[:, None] - node.args.get("diagonal", 0)
                kept = above <= 0 if op == "tril" else above >= 0
                evaluator.held[node.name] = np.where(kept, evaluator.value(source), 0)
            elif op not in BY_PAIR:
                if not _is_by_row(dependence, node.name):
                    return None
                axes = [i for i, size in enumerate(node.shape) if isinstance(size, str)]
                value = np.asarray(of_rows.value(node.name))
                if axes and value.shape[axes[0]] != positions[-1] + 1:
                    return None
                evaluator.held[node.name] = np.take(value, positions, axes[0]) if axes else value
        values = np.asarray(evaluator.value(name))
    except ArchitectureError:
        return None
    return values.reshape(-1, n, n) if values.shape[-2:] == (n, n) else None


def _is_by_row(dependence: Dependence, name: str) -> bool:
    """Whether a value, and all that it is computed from, has no numbers for pairs of positions."""
    nodes = dependence.description.nodes
    shapes = [nodes[each].shape or () for each in dependence.description.leading_to(name) if each in nodes]
    return all(sum(isinstance(size, str) for size in shape) < 2 for shape in shapes)


def _far_span(
    node: TracedNode, span: tuple[int, int], far: Array, seen: Array, numbers: Sequence[int]
) -> tuple[int, int]:
    """The window and chunk that are right for far positions, too: those of the near ones, or of a number."""
    spans = [span]
    if not any(span):
        sizes = [number + step for number in numbers for step in (-1, 0) if number + step > LARGEST]
        spans += [(size, 0) for size in sizes] + [(0, size) for size in sizes]
    later, earlier = far[:, None], far
    wrong = np.zeros_like(seen)
    for window, chunk in spans:
        wanted = (later >= earlier) & ((later - earlier < window) | (not window))
        wanted &= (later // max(chunk, 1) == earlier // max(chunk, 1)) | (not chunk)
        if np.array_equal(wanted, seen):
            return window, chunk
        wrong = wrong if wrong.any() else wanted != seen
    i, j = np.argwhere(wrong)[0]
    sees = "sees" if seen[i, j] else "does not see"
    raise ArchitectureError(
        f"{node.told}: wanted a window or chunks of tokens; got another mask: token {far[i]} {sees} "
        f"token {far[j]}"
    )


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


def _check_bias(node: TracedNode, mask: Array, seen: Array, positions: Array) -> None:
    """What is added to scores must grow with the distance by the same step everywhere, or be nothing."""
    if mask.dtype == bool or len(seen) < 2:
        return
    distance = np.where(seen, positions[:, None] - positions, 0)
    for head_mask in np.broadcast_to(mask, (len(mask), *seen.shape)):
        added = np.where(seen, head_mask - np.diagonal(head_mask)[:, None], 0.0)
        if not same(added, distance * added[1, 0], 1e-5) and np.max(np.abs(added)) > 1e-9:
            raise ArchitectureError(f"{node.told}: a bias that does not grow evenly with the distance")


def _values(dependence: Dependence, name: str, n: int) -> Array:
    """A mask's values [head, n, n], or of fewer tokens: as many as its smallest table has, or were traced."""
    traced = _traced(dependence)
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


def _traced(dependence: Dependence) -> int:
    """Tokens of the traced text, or the most of which all pairs are looked at."""
    return min(dependence.description.length, LARGEST)


def _context(dependence: Dependence) -> int:
    """The model's own context, as config.json says; else what is more than any distance."""
    config = dependence.description.config
    lengths = [config[name] for name in SIZES["context_length"] if isinstance(config.get(name), int)]
    return min((length for length in lengths if length > 0), default=NO_DISTANCE)


def _check_numbers(dependence: Dependence, node: TracedNode, numbers: Sequence[int]) -> None:
    """ArchitectureError for a number on the way to a mask that may be a window too long to be looked at."""
    distances = [each for each in numbers if each < _context(dependence)]
    if max(distances, default=0) > LARGEST:
        raise ArchitectureError(
            f"{node.told}: its mask has numbers for a distance of {max(distances) - 1} tokens: windows that "
            f"the model's code has as numbers are known up to {LARGEST} tokens"
        )


def _tables(dependence: Dependence, name: str) -> list[Array]:
    """The tables on the way to a mask that have numbers for pairs of positions: of each the last [n, n]."""
    inputs, values = dependence.description.inputs, dependence.description.values
    leaves = [inputs[before] for before in dependence.description.leading_to(name) if before in inputs]
    held = [values[leaf.name] for leaf in leaves if leaf.kind == "constant"]
    square = [table for table in held if table.ndim > 1 and 1 < table.shape[-1] == table.shape[-2]]
    return [table.reshape(-1, *table.shape[-2:])[-1] for table in square]


def largest_distance(dependence: Dependence, name: str) -> int:
    """One more than the largest number in the ops that lead to a value, in tokens."""
    return max(_distances(dependence, name), default=0)


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
