"""Sums of several softmax maps of an attention before they meet the values, as sums of several attentions.

`(a - w * b) @ v` is `a @ v - w * (b @ v)`: each map that the sum has becomes an attention of its own, whose
heads are chosen from those of the softmax. Knows views; nothing of scores or masks.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from graphml.authoring.importing.aten import MOVES, SAME
from graphml.authoring.importing.description import TracedNode
from graphml.authoring.importing.evaluation import op_name
from graphml.authoring.importing.expressions import Codes, Expression, T, View, Weight, whole
from graphml.authoring.importing.products import BETWEEN_TOKENS, Einsum, einsum_of, in_order
from graphml.authoring.importing.region import Recognised, concrete
from graphml.authoring.importing.walked import MapTerm, Walked

Terms = tuple[MapTerm, ...]
Rows = tuple[View, Codes]
"""A view and, for each head, its elements."""


def softmax_map(match: Recognised, shape: tuple[int | str, ...]) -> Terms:
    """The maps of a softmax over scores of a shape [.., heads, T, T]."""
    heads = match.numbers["head"]
    query, head, key = np.arange(T)[:, None], np.arange(heads)[:, None, None], np.arange(T)
    rest = [size for size in shape if not isinstance(size, str)]
    return (MapTerm(match, (query * heads * T + head * T + key).reshape(*rest, T, T)),)


def combined_maps(walk: Walked, node: TracedNode) -> Terms:
    """What an op makes of maps: moved, scaled or added."""
    name, args = op_name(node), node.args
    maps = [walk.maps[operand] for operand in node.operands if operand in walk.maps]
    if name == "python.getitem":
        return tuple(replace(term, codes=term.codes[args["1"]]) for term in maps[0])
    if name in MOVES:
        if name not in SAME and any(term.weight for term in maps[0]):
            raise ValueError("moves attention's weights that were multiplied with a parameter")
        return tuple(replace(term, codes=walk.moved(node, term.codes)) for term in maps[0])
    if name == "neg":
        return _times(maps[0], -1.0)
    if name in ("mul", "div") and len(maps) == 1:
        return _scaled(walk, node, maps[0])
    if name in ("add", "sub") and len(maps) == 2:
        return maps[0] + _times(maps[1], float(args.get("alpha", 1)) * (1 if name == "add" else -1))
    raise ValueError("is done with attention's weights: wanted their sums, and products with parameters")


def _times(terms: Terms, factor: float) -> Terms:
    return tuple(replace(term, factor=term.factor * factor) for term in terms)


def _scaled(walk: Walked, node: TracedNode, terms: Terms) -> Terms:
    a, b = node.args["self"], node.args["other"]
    other = b if isinstance(a, dict) and a.get("node") in walk.maps else a
    number = walk.number(other)
    if number is not None:
        if op_name(node) == "div" and (other is a or not number):
            raise ValueError("divides by attention's weights, or by 0")
        return _times(terms, 1 / number if op_name(node) == "div" else number)
    if op_name(node) == "div" or any(term.weight for term in terms):
        raise ValueError("attention's weights are divided by a parameter, or multiplied with two")
    if not walk.dependence.is_parameters(other["node"]):
        raise ValueError("attention's weights times a value that is no parameter")
    return tuple(replace(term, weight=other["node"]) for term in terms)


def attended_by_maps(walk: Walked, node: TracedNode) -> View:
    """The product of maps and values: an attention for each map, and their sum."""
    first, second = node.operands
    letters = None
    if op_name(node) == "einsum":
        letters, (first, second) = einsum_of(walk, node)
        if second in walk.maps:
            letters, first, second = letters.turned, second, first
    terms, value = walk.maps.get(first), walk.values.get(second)
    if op_name(node) not in BETWEEN_TOKENS or terms is None or not isinstance(value, View):
        raise ValueError("wanted attention's weights times values of tokens")
    if letters is not None:
        terms, value = _in_order(letters, terms, value)
    result = _attended(walk, node, terms[0], value)
    for term in terms[1:]:
        op, size = ("sub", -term.factor) if term.factor < 0 else ("add", term.factor)
        part = _attended(walk, node, replace(term, factor=size), value)
        result = walk.select.kept(Expression(op, (result, part), part.shape, node.path, node.told))
    walk.neighbours.add(node.name)
    walk.made_by.setdefault(id(result), node)
    if letters is None:
        return walk.laid(node, result)
    natural = letters.first.replace(letters.summed, "") + _width(letters)
    shape = [walk.shape_of(node.name)[letters.result.index(each)] for each in natural]
    laid = whole(result, concrete(tuple(shape), T), len(natural) - 2)
    return View(result, np.transpose(laid.codes, [natural.index(each) for each in letters.result]))


def _width(letters: Einsum) -> str:
    """The letters of the values alone."""
    return "".join(each for each in letters.second if each not in letters.first)


def _in_order(letters: Einsum, terms: Terms, value: View) -> tuple[Terms, View]:
    """Maps [.., query, key] and values [.., key, width], whatever order an einsum has."""
    summed, width = letters.summed, _width(letters)
    lead = letters.first.replace(summed, "")[:-1]
    if len(summed) != 1 or len(width) != 1 or letters.first[-1] != summed:
        raise ValueError("wanted attention's weights [.., queries, keys] times values of one width")
    return terms, in_order(value, letters.second, lead, (summed, width))


def _attended(walk: Walked, node: TracedNode, term: MapTerm, value: View) -> Expression:
    """One term of the sum, [heads, width of the values]."""
    rest, heads = term.codes.shape[:-2], _heads(term)
    if value.axis != value.codes.ndim - 2:
        raise ValueError("wanted attention's weights times values with the tokens before their width")
    per_head = value.elements.reshape(-1, value.codes.shape[-1])
    numbers_of_heads = np.arange(len(per_head)).reshape(value.codes.shape[:-2])
    of_value = np.broadcast_to(numbers_of_heads, rest).reshape(-1)
    q, k = (walk.view(term.match.entries[role]) for role in "qk")
    rows_q = q.elements.reshape(term.match.numbers["head"], -1)
    rows_k = k.elements.reshape(term.match.numbers["head_kv"], -1)
    rows_k = np.repeat(rows_k, len(rows_q) // len(rows_k), 0)
    y = attend(walk, node, term.match, (q, rows_q[heads]), (k, rows_k[heads]), (value, per_head[of_value]))
    y = walk.select.shaped(y, (len(heads), per_head.shape[1]))
    if term.factor != 1.0:
        numbers = {"factor": term.factor, "offset": 0.0}
        y = walk.select.kept(Expression("scale", (y,), y.shape, node.path, node.told, numbers=numbers))
    if term.weight:
        weight = Weight(term.weight, _weight_shape(walk.weight(term.weight).shape, len(heads)))
        weights = {"weight": weight}
        y = walk.select.kept(Expression("mul", (y,), y.shape, node.path, node.told, weights))
    return y


def _heads(term: MapTerm) -> Codes:
    """The head of the softmax that each map is of; ValueError unless each one is whole and in order."""
    heads = term.match.numbers["head"]
    rows = term.codes.reshape(-1, T, term.codes.shape[-1])
    chosen: Codes = rows[:, 0, 0] // T % heads
    whole = np.arange(T)[:, None] * heads * T + chosen[:, None, None] * T + np.arange(T)
    if rows.shape != whole.shape or np.any(rows != whole):
        raise ValueError("takes attention's weights in another order than that of the tokens")
    return chosen


def _weight_shape(shape: tuple[int, ...], n_heads: int) -> tuple[int, ...]:
    """A parameter's shape beside [heads, width], of one that is multiplied with maps [.., T, T]."""
    if int(np.prod(shape)) == 1:
        return (1,)
    if shape[-2:] != (1, 1) or int(np.prod(shape)) != n_heads or max(shape) != n_heads:
        raise ValueError(
            f"attention's weights times a parameter of shape {list(shape)}: wanted one of each head"
        )
    return (n_heads, 1)


def attend(walk: Walked, node: TracedNode, match: Recognised, q: Rows, k: Rows, v: Rows) -> Expression:
    """Attention with the elements of each head of q, and of k and v, where they may repeat."""
    heads = len(q[1])
    orders = [np.argsort(rows[0]) for _, rows in (q, k)]
    if np.array_equal(orders[0], orders[1]):  # scores are the same in any order of the columns of both
        q, k = ((view, rows[:, orders[0]]) for view, rows in (q, k))
    kept = [walk.select.of_rows(q[0].of, q[1])]
    counts = [len(set(map(tuple, rows.tolist()))) for _, rows in (k, v)]
    if max(counts) % min(counts):
        raise ValueError(f"attention with {counts[0]} heads for keys and {counts[1]} for values")
    kept += [_shared_heads(walk, *rows, heads, max(counts)) for rows in (k, v)]
    numbers = {name: number for name, number in match.numbers.items() if name not in ("head", "head_kv")}
    weights = {role: Weight(name, (heads,)) for role, name in match.weights.items()}
    shape, pair = (heads * kept[2].shape[1],), (id(kept[1]), id(kept[2]))
    numbers["attention"] = len(walk.attended)
    if pair in walk.attended:  # its keys and values are written by another attention
        numbers["keys_of"] = walk.attended.index(pair)
        kept = kept[:1]
    walk.attended.append(pair)
    attended = Expression("attend", tuple(kept), shape, node.path, node.told, weights, numbers)
    return walk.select.kept(attended)


def _shared_heads(walk: Walked, view: View, rows: Codes, heads: int, count: int) -> Expression:
    """The heads of keys or values, of which there are so many; each is once, unless the others are more."""
    if heads % count:
        raise ValueError(f"{heads} query heads for {count} key-value heads")
    kept = rows[:: max(len(rows) // count, 1)]
    if len(rows) % count or not np.array_equal(np.repeat(kept, len(rows) // count, 0), rows):
        raise ValueError("query heads share key-value heads in another order than one after the other")
    return walk.select.of_rows(view.of, kept)
