"""Weights of pairs of tokens without a softmax, as linear attention: products of queries and keys, decays.

`(q k^T * decay^(i - j)) v` over the tokens before is a state of each head that fades and gets `v k^T`. A
weight of tokens i and j is followed from op to op as a product of a query, a key, a number, a constant power
of the distance, and e to a sum of values of the tokens between. Knows views; nothing of layers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphml.authoring.importing.aten import MOVES
from graphml.authoring.importing.description import TracedNode
from graphml.authoring.importing.evaluation import op_name
from graphml.authoring.importing.expressions import Codes, Expression, T, View
from graphml.authoring.importing.masks import largest_distance
from graphml.authoring.importing.products import BETWEEN_TOKENS, einsum_of, in_order
from graphml.authoring.importing.region import run, same
from graphml.authoring.importing.walked import PairWeights, Walked

Array = NDArray[np.float64]
SHORTEST, LONGEST = 600, 2048  # tokens on which it is compared


def pair_weights(walk: Walked, node: TracedNode) -> PairWeights:
    """The value of an op with a number for each pair of tokens; ValueError if it is none of these."""
    name = op_name(node)
    held = [walk.pairs[each] for each in node.operands if each in walk.pairs]
    if not held:
        return _differences(walk, node) if name == "sub" else _products(walk, node)
    if name in MOVES:
        return _moved(walk, node, held[0])
    if name in ("where", "masked_fill", "tril"):
        return _masked(walk, node, held[0])
    if name == "exp" and held[0].is_log:
        return replace(held[0], is_log=False)
    if name in ("mul", "div"):
        if len(held) == 2 and name == "mul":
            return _both(walk, node, *held)
        return _multiplied(walk, node, held[0])
    raise ValueError("is done with weights of pairs of tokens: wanted products, masks and decays")


def _rows(view: View, rest: tuple[int, ...]) -> Codes:
    """The elements of each head, [N, K], of a value [.., T, K]."""
    elements = view.elements
    rows: Codes = np.broadcast_to(elements, (*rest, elements.shape[-1])).reshape(-1, elements.shape[-1])
    return rows


def _ends(walk: Walked, node: TracedNode, names: list[str]) -> tuple[View, View]:
    """A query [.., T, K] and a key [.., T, K] whose product a node is."""
    q, k = (walk.view(name) for name in names)
    if op_name(node) == "einsum":
        letters, _ = einsum_of(walk, node)
        first, second, summed = letters.first, letters.second, letters.summed
        tokens = [side[view.axis or 0] for side, view in ((first, q), (second, k))]
        if letters.result[-2:] == tokens[1] + tokens[0]:
            q, k, first, second, tokens = k, q, second, first, tokens[::-1]
        lead = letters.result[:-2]
        if letters.result[-2:] != "".join(tokens) or len(summed) != 1:
            raise ValueError("a product of two values of tokens: wanted [.., queries, keys] as its result")
        return (
            in_order(q, first, lead, (tokens[0], summed)),
            in_order(k, second, lead, (tokens[1], summed)),
        )
    return q, View(k.of, np.swapaxes(k.codes, -1, -2))


def _products(walk: Walked, node: TracedNode) -> PairWeights:
    """The products of queries and keys."""
    names = node.operands
    if op_name(node) not in BETWEEN_TOKENS or not all(map(walk.is_walked, names)):
        raise ValueError("mixes tokens: it was recognised as nothing that graphml has an op for")
    q, k = _ends(walk, node, names)
    if any(view.axis != view.codes.ndim - 2 for view in (q, k)):
        raise ValueError("a product of two values of tokens: wanted those of one width")
    rest = tuple(size for size in node.shape or () if not isinstance(size, str))
    sides = tuple(walk.select.of_rows(view.of, _rows(view, rest)) for view in (q, k))
    ones = np.ones(sides[0].shape[0])
    return PairWeights(rest, ones, ones, sides[0], sides[1])


def _differences(walk: Walked, node: TracedNode) -> PairWeights:
    """Running sums of a token less those of another: the sum of the values between."""
    rest = tuple(size for size in node.shape or () if not isinstance(size, str))
    later, earlier = (walk.view(node.args[side]["node"]) for side in ("self", "other"))
    if (
        later.of is not earlier.of
        or later.of.op != "running_sum"
        or (_place(later), _place(earlier)) != (-2, -1)
    ):
        raise ValueError("a difference of values of two tokens, which are no running sums of the same values")
    rows = [_of_heads(view, rest) for view in (later, earlier)]
    if not np.array_equal(rows[0], rows[1]):
        raise ValueError("a difference of running sums of different elements")
    ones = np.ones(len(rows[0]))
    between = walk.select.shaped(walk.select.of_rows(later.of.inputs[0], rows[0]), ones.shape)
    return PairWeights(rest, ones, ones, between=between, is_log=True)


def _place(view: View) -> int:
    """The dimension of the tokens, from the last one."""
    return 0 if view.axis is None else view.axis - view.codes.ndim


def _of_heads(view: View, rest: tuple[int, ...]) -> Codes:
    """The element of each head, [N, 1], of a value [.., T, 1] or [.., 1, T]."""
    elements = view.elements
    if not elements.ndim or elements.shape[-1] != 1:
        raise ValueError("weights of pairs of tokens times values of single tokens in another order")
    rows: Codes = np.broadcast_to(elements[..., 0], rest).reshape(-1, 1)
    return rows


def _moved(walk: Walked, node: TracedNode, pairs: PairWeights) -> PairWeights:
    """In another shape whose heads and tokens are in the same order."""
    codes = np.arange(pairs.heads * T * T).reshape(*pairs.rest, T, T)
    moved = walk.moved(node, codes)
    if np.shape(moved)[-2:] != (T, T) or not np.array_equal(np.reshape(moved, -1), codes.reshape(-1)):
        raise ValueError("weights of pairs of tokens in another order")
    return replace(pairs, rest=np.shape(moved)[:-2])


def _masked(walk: Walked, node: TracedNode, pairs: PairWeights) -> PairWeights:
    """Nothing of later tokens."""
    if op_name(node) == "tril":
        mask, other = np.tri(T, dtype=bool, k=int(node.args.get("diagonal", 0))), 0.0
    else:
        fills = op_name(node) == "masked_fill"
        condition = node.args["mask" if fills else "condition"]["node"]
        if not walk.dependence.is_positions(condition):
            raise ValueError("weights of pairs of tokens with a mask that is not of positions alone")
        _only_causal(walk, condition, fills)
        mask = np.asarray(walk.plain.value(condition)).astype(bool) ^ fills
        filled = node.args["value" if fills else "other"]
        number = walk.number(filled)
        other = float("nan") if number is None else number
    if not np.array_equal(
        np.broadcast_to(mask, (*mask.shape[:-2], T, T)).reshape(-1, T, T).all(0), np.tri(T)
    ):
        raise ValueError("weights of pairs of tokens with another mask than that of later tokens")
    if other != 0.0 and not (pairs.is_log and other < -1e4):
        raise ValueError(f"weights of later tokens of {other}: wanted 0, or before exp -inf")
    if other == 0.0 and pairs.is_log:
        raise ValueError("weights of later tokens of exp(0): wanted 0")
    return replace(pairs, is_causal=True)


def _is_causal(mask: NDArray[Any], length: int) -> bool:
    """Whether each head sees each token and all before it."""
    of_heads = np.broadcast_to(mask, (*mask.shape[:-2], length, length)).reshape(-1, length, length)
    return bool(np.all(of_heads == np.tri(length, dtype=bool)))


def _only_causal(walk: Walked, name: str, inverted: bool) -> None:
    """ValueError for a mask of long texts that hides tokens before."""
    length = _longest(walk, name)
    mask = np.asarray(run(walk.dependence, {}, name, length)).astype(bool) ^ inverted
    if not _is_causal(mask, length):
        raise ValueError("weights of pairs of tokens with a window, or that see later tokens")


def _longest(walk: Walked, name: str) -> int:
    """Tokens of a text in which a mask's windows show."""
    length = 2 * largest_distance(walk.dependence, name) + 3
    if length > LONGEST:
        raise ValueError(
            f"weights of pairs of tokens with a number of {length // 2 - 2} tokens: too long to know"
        )
    return max(SHORTEST, length)


def _multiplied(walk: Walked, node: TracedNode, pairs: PairWeights) -> PairWeights:
    """Times a number, values of positions, or values of the query's or key's token."""
    is_first = isinstance(node.args["self"], dict) and node.args["self"].get("node") in walk.pairs
    other = node.args["other" if is_first else "self"]
    divides = op_name(node) == "div"
    if pairs.is_log or (divides and not is_first):
        raise ValueError("is done with weights of pairs of tokens: wanted products, masks and decays")
    number = walk.number(other)
    if number is not None:
        if divides and not number:
            raise ValueError("divides by 0")
        return replace(pairs, factor=pairs.factor * (1 / number if divides else number))
    name = other["node"]
    if walk.is_walked(name):
        return _by_tokens(walk, node, pairs, walk.view(name))
    if not walk.dependence.is_positions(name) or divides:
        raise ValueError("weights of pairs of tokens times a parameter")
    return _by_distance(walk, name, pairs)


def _by_distance(walk: Walked, name: str, pairs: PairWeights) -> PairWeights:
    """Times a constant power of the distance of each head, 0 for later tokens."""
    length = _longest(walk, name)
    values = np.asarray(run(walk.dependence, {}, name, length), np.float64)
    if values.ndim < 2 or values.shape[-2:] != (length, length):
        raise ValueError("weights of pairs of tokens times numbers of single positions")
    values = np.broadcast_to(values, (*pairs.rest, length, length)).reshape(pairs.heads, length, length)
    at_once, next_to = values[:, 0, 0], values[:, 1, 0]
    if np.any(at_once == 0.0):
        raise ValueError("weights of pairs of tokens of which a token's own is 0")
    decay = next_to / at_once
    i, j = np.arange(length)[:, None], np.arange(length)
    powers = decay[:, None, None] ** np.maximum(i - j, 0)
    is_causal = bool(np.all(values[:, 0, 1:] == 0.0))
    wanted = at_once[:, None, None] * np.where(j <= i, powers, 0.0)
    if not same(np.tril(values), wanted, 1e-6) or not (is_causal or pairs.is_causal):
        raise ValueError("weights of pairs of tokens that are no power of their distance: wanted a decay")
    if is_causal and np.any(np.triu(values, 1)):
        raise ValueError("weights of pairs of tokens that see later tokens")
    factor = pairs.factor * at_once
    return replace(pairs, factor=factor, decay=pairs.decay * decay, is_causal=True)


def _by_tokens(walk: Walked, node: TracedNode, pairs: PairWeights, view: View) -> PairWeights:
    """Times a value of the query's token [.., T, 1], or of the key's [.., 1, T]; or divided by it."""
    place = _place(view)
    if place not in (-1, -2):
        raise ValueError("weights of pairs of tokens times values of single tokens in another order")
    value = walk.select.of_rows(view.of, _of_heads(view, pairs.rest))
    if op_name(node) == "mul":
        return _with_ends(walk, node, pairs, "mul", value, place == -2)
    if pairs.q is None and (pairs.of_query if place == -2 else pairs.of_key) is None:
        raise ValueError("divides decays by values of tokens")
    return _with_ends(walk, node, pairs, "div", value, place == -2)


def _with_ends(
    walk: Walked, node: TracedNode, pairs: PairWeights, op: str, value: Expression, of_query: bool
) -> PairWeights:
    """Times a value [N, 1] of the query's or key's token, or divided by it."""
    before = pairs.of_query if of_query else pairs.of_key
    if before is None and op == "mul":
        after = value
    elif before is not None:
        after = _op(walk, node, op, before, value)
    elif of_query:
        return replace(pairs, q=_op(walk, node, op, pairs.q, value))
    else:
        return replace(pairs, k=_op(walk, node, op, pairs.k, value))
    return replace(pairs, of_query=after) if of_query else replace(pairs, of_key=after)


def _both(walk: Walked, node: TracedNode, a: PairWeights, b: PairWeights) -> PairWeights:
    """The product of weights, of which one at most has queries and keys."""
    if a.is_log or b.is_log or (a.q is not None and b.q is not None) or None not in (a.between, b.between):
        raise ValueError("a product of two weights of pairs of tokens")
    rest = np.broadcast_shapes(a.rest, b.rest)
    if any(int(np.prod(rest)) != each.heads for each in (a, b)):
        raise ValueError("a product of weights of pairs of tokens with different heads")
    q, k = (a.q, a.k) if a.q is not None else (b.q, b.k)
    of_query, of_key = (
        _op(walk, node, "mul", first, second) if first is not None and second is not None else first or second
        for first, second in ((a.of_query, b.of_query), (a.of_key, b.of_key))
    )
    return PairWeights(
        rest, a.factor * b.factor, a.decay * b.decay, q, k, of_query, of_key, a.between or b.between,
        is_causal=a.is_causal or b.is_causal,
    )  # fmt: skip


def _op(walk: Walked, node: TracedNode, op: str, a: Expression | None, b: Expression) -> Expression:
    assert a is not None
    return walk.select.kept(Expression(op, (a, b), a.shape, node.path, node.told))


def summed(walk: Walked, node: TracedNode) -> View:
    """The product of weights and values, or the sums of the weights of each token's queries."""
    if op_name(node) == "sum":
        pairs, ndim = walk.pairs[node.operands[0]], len(walk.shape_of(node.operands[0]))
        dims = node.args.get("dim")
        dim = dims[0] if isinstance(dims, list) and len(dims) == 1 else dims
        if not isinstance(dim, int) or dim % ndim != ndim - 1:
            raise ValueError("weights of pairs of tokens summed over another dimension than that of the keys")
        if pairs.k is None:
            raise ValueError("sums of decays alone")
        return walk.laid(
            node, _attended(walk, node, pairs, _constant_rows(walk, node, ((1.0,),) * pairs.heads))
        )
    names = node.operands
    if op_name(node) not in BETWEEN_TOKENS or names[0] not in walk.pairs or names[1] in walk.pairs:
        raise ValueError("wanted weights of pairs of tokens times values of tokens")
    pairs, value = walk.pairs[names[0]], walk.view(names[1])
    order: list[int] = []
    if op_name(node) == "einsum":
        letters, _ = einsum_of(walk, node)
        lead, tokens, sum_letter = letters.first[:-2], letters.first[-2], letters.first[-1]
        width = [each for each in letters.second if each not in letters.first]
        if letters.summed != sum_letter or len(width) != 1:
            raise ValueError("wanted weights of pairs of tokens times values of one width")
        value = in_order(value, letters.second, lead, (sum_letter, *width))
        natural = [*lead, tokens, *width]
        order = [natural.index(each) for each in letters.result]
    if value.axis != value.codes.ndim - 2:
        raise ValueError("wanted weights of pairs of tokens times values with the tokens before their width")
    v = walk.select.of_rows(value.of, _rows(value, pairs.rest))
    y = _attended(walk, node, pairs, v)
    if not order:
        return walk.laid(node, y)
    shape = (*pairs.rest, T, v.shape[-1])
    codes = (np.arange(T)[:, None] * y.size + np.arange(y.size).reshape(-1, v.shape[-1])[:, None]).reshape(
        shape
    )
    return View(y, np.transpose(codes, order))


def _constant_rows(walk: Walked, node: TracedNode, rows: tuple[tuple[float], ...]) -> Expression:
    """A number of each head, [N, 1]."""
    numbers = {"rows": rows}
    return walk.select.kept(
        Expression("constant_rows", (), (len(rows), 1), node.path, node.told, numbers=numbers)
    )


def _attended(walk: Walked, node: TracedNode, pairs: PairWeights, v: Expression) -> Expression:
    """Linear attention, [N, width of the values]."""
    if not pairs.is_causal:
        raise ValueError("weights of pairs of tokens that see later tokens")
    if pairs.is_log or pairs.q is None or pairs.k is None:
        raise ValueError("wanted products of queries and keys in weights of pairs of tokens")
    q, k = pairs.q, pairs.k
    if pairs.of_query is not None:
        q = _op(walk, node, "mul", q, pairs.of_query)
    if pairs.of_key is not None:
        k = _op(walk, node, "mul", k, pairs.of_key)
    scale = float(pairs.factor[0])
    if np.any(pairs.factor != scale):
        raise ValueError("weights of pairs of tokens with a factor for each head")
    gates: tuple[Expression, ...] = ()
    constant = tuple((float(f"{decay:.9g}"),) for decay in pairs.decay)
    fades = any(decay != (1.0,) for decay in constant)
    if pairs.between is not None:
        risen = walk.select.kept(
            Expression("exp", (pairs.between,), pairs.between.shape, node.path, node.told)
        )
        gates = (walk.select.shaped(risen, (pairs.heads, 1)),)
    if fades:
        rows = walk.select.kept(
            Expression(
                "constant_rows", (), (pairs.heads, 1), node.path, node.told, numbers={"rows": constant}
            )
        )
        gates = (_op(walk, node, "mul", gates[0], rows),) if gates else (rows,)
    walk.neighbours.add(node.name)
    numbers = {"scale": float(f"{scale:.9g}")}
    shape = (pairs.heads, v.shape[-1])
    y = walk.select.kept(
        Expression("linear_attention", (q, k, v, *gates), shape, node.path, node.told, numbers=numbers)
    )
    walk.made_by.setdefault(id(y), node)
    return y


def running_sum(walk: Walked, node: TracedNode) -> View:
    """The sum of each token's values and those of all tokens before."""
    x = walk.taken(node.args["self"]["node"])
    walk.neighbours.add(node.name)
    return walk.made(node, "running_sum", (x,), x.shape)
