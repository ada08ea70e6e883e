"""What padding, cuts, joins and partial texts read of tokens before, as shifts of expressions of each token.

In the codes of a view a negative token is before the text, where values are zeros; values of tokens from `T`
on may not be read. Knows views and one node at a time; nothing of layers, or of states' names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from graphml.authoring.importing.description import TracedNode
from graphml.authoring.importing.expressions import Codes, Expression, T, View
from graphml.authoring.importing.walked import Value, Walked

FAR = 1 << 20  # added to a token whose value may not be read
FURTHEST = 256  # tokens that a state keeps
MOST_SHIFTS = 16  # of one value


def token_axis(node: TracedNode) -> int:
    """The dimension of a node's shape that counts tokens."""
    axes = [i for i, size in enumerate(node.shape or ()) if isinstance(size, str)]
    if len(axes) != 1:
        raise ValueError(f"a value of shape {list(node.shape or ())}: wanted one dimension of tokens")
    return axes[0]


def tokens_along(view: View, axis: int) -> Codes:
    """The token at each place of a dimension; ValueError if its other elements are not those of one token."""
    size = view.of.size
    tokens = np.moveaxis(view.codes // size, axis, 0).reshape(view.codes.shape[axis], -1)
    elements = np.moveaxis(view.codes % size, axis, 0)
    if np.any(tokens != tokens[:, :1]) or np.any(elements != elements[:1]):
        raise ValueError("reads other tokens for some of its elements than for others")
    return tokens[:, 0]


def of_all_tokens(view: View, axis: int) -> View:
    """The same elements of all tokens of the text."""
    first = np.take(view.codes, [0], axis) % view.of.size
    return View(view.of, first + _along(np.arange(T), axis, view.codes.ndim) * view.of.size)


def _along(tokens: Codes, axis: int, ndim: int) -> Codes:
    return tokens.reshape([len(tokens) if i == axis else 1 for i in range(ndim)])


def shifted(walk: Walked, node: TracedNode, of: Expression, by: int) -> Expression:
    """A value of the token `by` before, zeros before the first one."""
    if by == 0:
        return of
    if of.op == "shift":
        of, by = of.inputs[0], by + of.numbers["by"]
    if by > FURTHEST:
        raise ValueError(f"reads {by} tokens before: wanted at most {FURTHEST}")
    numbers = {"by": by}
    return walk.select.kept(Expression("shift", (of,), of.shape, node.path, node.told, numbers=numbers))


def of_own_tokens(walk: Walked, node: TracedNode, view: View) -> View:
    """The same value where each token reads its own: what it reads of tokens before becomes shifts.

    A view that reads anything else, or a part of the text, is left as it is.
    """
    axes = [i for i, size in enumerate(node.shape or ()) if isinstance(size, str)]
    if len(axes) != 1 or view.axis is not None or view.codes.shape[axes[0]] != T:
        return view
    tokens, elements = view.codes // view.of.size, view.codes % view.of.size
    own = _along(np.arange(T), axes[0], tokens.ndim)
    distances = own - tokens
    by = sorted(set(distances.reshape(-1).tolist()))
    if np.any(distances != np.take(distances, [0], axes[0])) or by[0] < 0 or len(by) > MOST_SHIFTS:
        return view
    walk.neighbours.add(node.name)
    parts = concatenated(walk, node, [shifted(walk, node, view.of, distance) for distance in by])
    return View(parts, own * parts.size + np.searchsorted(by, distances) * view.of.size + elements)


def concatenated(walk: Walked, node: TracedNode, parts: Iterable[Expression]) -> Expression:
    """Values of each token, flat, one after the other."""
    whole, *rest = (walk.select.shaped(part, (part.size,)) for part in parts)
    for part in rest:
        shape = (whole.size + part.size,)
        whole = walk.select.kept(Expression("concat", (whole, part), shape, node.path, node.told))
    return whole


def padded(walk: Walked, node: TracedNode) -> View:
    """Zeros before the text, or less of it where the padding is negative."""
    view, pads = walk.view(node.args["self"]["node"]), node.args["pad"]
    if node.args.get("mode", "constant") not in ("constant", {"text": "constant"}):
        raise ValueError("pads with other values than zeros")
    if node.args.get("value") or not all(isinstance(count, int) for count in pads):
        raise ValueError("pads with other values than zeros, or by the length of the text")
    for i, (before, behind) in enumerate(zip(pads[::2], pads[1::2], strict=True)):
        at = view.codes.ndim - 1 - i
        if (before or behind) and at != token_axis(node):
            raise ValueError("pads another dimension than that of the tokens")
        count = view.codes.shape[at]
        view = View(view.of, np.take(view.codes, range(max(-before, 0), count - max(-behind, 0)), at))
        view = extended(view, at, max(before, 0), max(behind, 0))
    return view


def extended(view: View, axis: int, before: int, behind: int) -> View:
    """With zeros before, and values that may not be read behind."""
    if not before and not behind:
        return view
    tokens, size = tokens_along(view, axis), view.of.size
    elements = np.take(view.codes, [0], axis) % size
    zeros = [elements + (min(int(tokens[0]), 0) - before + i) * size for i in range(before)]
    unknown = [elements + (FAR + i) * size for i in range(behind)]
    return View(view.of, np.concatenate([*zeros, view.codes, *unknown], axis))


def joined_along_text(walk: Walked, node: TracedNode) -> View:
    """Zeros before a value, parts of one value, or the first tokens of one and the others of another."""
    axis = token_axis(node)
    parts = [_part(walk, tensor["node"], axis) for tensor in node.args["tensors"]]
    parts = [part for part in parts if (part.codes.size if isinstance(part, View) else part)]
    views = [part for part in parts if isinstance(part, View)]
    zeros = parts[0] if isinstance(parts[0], int) else 0
    if len(views) != len(parts) - bool(zeros):
        raise ValueError("joins tokens with zeros that are not before the text")
    if len({id(view.of) for view in views}) == 1:
        same = View(views[0].of, np.concatenate([view.codes for view in views], axis))
        if not zeros or int(tokens_along(same, axis)[0]) <= 0:
            return extended(same, axis, zeros, 0)
        views = [same]
    if len(views) + bool(zeros) != 2:
        raise ValueError("joins more than two values along the text")
    return _first_and_others(walk, node, views, zeros)


def _part(walk: Walked, name: str, axis: int) -> View | int:
    """One of the joined values; a number of zeros."""
    if walk.is_walked(name):
        return walk.view(name)
    if walk.dependence.is_parameters(name):
        raise ValueError("joins tokens with a parameter in the place of tokens")
    zeros = np.asarray(walk.plain.value(name))
    if np.any(zeros):
        raise ValueError("joins tokens with constants that are not zeros")
    return int(zeros.shape[axis])


def _first_and_others(walk: Walked, node: TracedNode, views: list[View], zeros: int) -> View:
    """The first tokens of one value or zeros, and the other tokens of the last one."""
    axis = token_axis(node)
    tokens = np.concatenate([np.arange(zeros), *(tokens_along(view, axis) for view in views)])
    if not np.array_equal(tokens, np.arange(T)):
        raise ValueError("joins tokens in another order than that of the text")
    shape = tuple(size for i, size in enumerate(views[-1].codes.shape) if i != axis and size != 1) or (1,)
    values = [walk.select.taken(of_all_tokens(view, axis), shape) for view in views]
    position = Expression("positions", (), (1,), node.path, node.told)
    count = zeros or views[0].codes.shape[axis]
    is_first = Expression(
        "less", (walk.select.kept(position),), (1,), node.path, node.told, numbers={"number": float(count)}
    )
    mask = walk.select.kept(is_first)
    walk.neighbours.add(node.name)
    if not zeros:
        return walk.made(node, "where", (mask, *values), shape)
    behind = Expression("equal", (mask,), (1,), node.path, node.told, numbers={"number": 0.0})
    return walk.made(node, "where", (walk.select.kept(behind), *values), shape, numbers={"number": 0.0})


def of_partial_text(
    walk: Walked, node: TracedNode, names: Iterable[str], value: Callable[[TracedNode], Value]
) -> View | None:
    """What works on each token of values of a part of the text, done on the whole; None if none is partial.

    The result is of the latest of the tokens that are read together. value: of a node, by all tokens.
    """
    partial = {}
    for name in names:
        view = walk.values.get(name)
        axes = [i for i, size in enumerate(walk.shape_of(name)) if isinstance(size, str)]
        if isinstance(view, View) and len(axes) == 1 and view.axis is None:
            partial[name] = (view, axes[0], tokens_along(view, axes[0]))
    if not partial:
        return None
    latest = max(int(tokens[0]) for _, _, tokens in partial.values())
    counts = {len(tokens) for _, _, tokens in partial.values()}
    if len(counts) != 1 or any(np.any(np.diff(tokens) != 1) for _, _, tokens in partial.values()):
        raise ValueError("reads tokens of a text that do not follow one another")
    known = set(walk.made_by)
    for name, (view, axis, tokens) in partial.items():
        whole = of_all_tokens(view, axis)
        of = shifted(walk, node, whole.of, latest - int(tokens[0]))
        walk.values[name] = View(of, whole.codes)
    result = value(node)
    walk.values |= {name: view for name, (view, _, _) in partial.items()}
    for expression in set(walk.made_by) - known:  # its values are not those of the node
        del walk.made_by[expression]
    if not isinstance(result, View) or result.axis is None:
        raise ValueError("several values of a part of the text")
    tokens = latest + np.arange(counts.pop())
    tokens = np.where(tokens < 0, tokens % T + FAR, tokens)
    elements = np.take(result.codes, [0], result.axis) % result.of.size
    return View(result.of, elements + _along(tokens, result.axis, result.codes.ndim) * result.of.size)
