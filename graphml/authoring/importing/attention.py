"""Attention as it is traced, one op or products and a softmax: its scale, cap and ALiBi by running it.

Knows pairs of tokens; nothing of masks, which `masks` runs, or of layouts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphml.authoring.importing.aten import MOVES
from graphml.authoring.importing.dependence import Dependence
from graphml.authoring.importing.description import TracedNode
from graphml.authoring.importing.evaluation import op_name
from graphml.authoring.importing.functions import softmax
from graphml.authoring.importing.masks import reach
from graphml.authoring.importing.region import Recognised, concrete, run, same
from graphml.errors import ArchitectureError

Array = NDArray[Any]
T = 7
WIDE = 16  # of values that softmax maps are tried with
SIZES = (1.0, 100.0)  # of queries that are tried: limits of scores show in large ones alone


@dataclass(frozen=True)
class _AttentionNodes:
    """The nodes of an attention: what it reads, its last node, the masks that come in."""

    query: str
    key: str
    value: str
    last: str
    masks: tuple[str, ...]
    causal: bool
    sinks: str = ""  # the parameter with one more score of each head


def attentions(dependence: Dependence) -> list[Recognised]:
    """All attentions of the graph; ArchitectureError for a mixing of tokens that is none that is known."""
    recognised = []
    for node in dependence.needed:
        if op_name(node) == "scaled_dot_product_attention":
            args = node.args
            mask = args.get("attn_mask")
            query, key, value = (str(args[role]["node"]) for role in ("query", "key", "value"))
            masks = (mask["node"],) if mask else ()
            for name in masks:
                if dependence.on_tokens(name):
                    raise _mask_of_tokens(dependence, name)
            recognised.append(
                _fitted(
                    dependence,
                    node,
                    _AttentionNodes(query, key, value, node.name, masks, bool(args.get("is_causal"))),
                )
            )
        elif op_name(node) in ("softmax", "_softmax") and dependence.is_mixing(node.name):
            combined = _is_combined(dependence, node.name)
            roles = _softmax_map(dependence, node) if combined else _by_products(dependence, node)
            recognised.append(_fitted(dependence, node, roles))
    return recognised


def _is_combined(dependence: Dependence, softmax_node: str) -> bool:
    """Whether attention's weights are added to others, or multiplied with several values."""
    stack, known, products = [softmax_node], {softmax_node}, 0
    while stack:
        for user in dependence.users.get(stack.pop(), ()):
            if not dependence.is_mixing(user):
                products += dependence.on_tokens(user) and user not in known
            elif sum(map(dependence.is_mixing, dependence.token_operands(user))) > 1:
                return True
            elif user not in known:
                stack.append(user)
            known.add(user)
    return products > 1


def _softmax_map(dependence: Dependence, at: TracedNode) -> _AttentionNodes:
    """The connected nodes before a softmax, whose weights are combined before they meet values."""
    nodes, inside, stack = dependence.description.nodes, set[str](), [at.name]
    while stack:
        name = stack.pop()
        inside.add(name)
        stack += [operand for operand in nodes[name].operands if dependence.is_mixing(operand)]
    scores = [name for name in nodes if name in inside and len(_outside(dependence, name, inside)) > 1]
    read = {operand for name in inside for operand in _outside(dependence, name, inside)}
    if len(scores) != 1 or len(read) != 2:
        raise ArchitectureError(f"{at.told}: scores that are no product of one query and one key")
    if any(op_name(nodes[name]) == "cat" for name in inside):
        raise ArchitectureError(f"{at.told}: sinks of attention whose weights are combined with others")
    query, key = _outside(dependence, scores[0], inside)
    return _AttentionNodes(query, key, "", at.name, _masks(dependence, inside), False)


def _outside(dependence: Dependence, name: str, inside: set[str]) -> list[str]:
    """The operands of tokens that are not inside."""
    return [operand for operand in dependence.token_operands(name) if operand not in inside]


def _masks(dependence: Dependence, inside: set[str]) -> tuple[str, ...]:
    """The values of pairs of positions that come in, in order."""
    nodes = dependence.description.nodes
    read = (operand for name in nodes if name in inside for operand in nodes[name].operands)
    return tuple(dict.fromkeys(
        operand for operand in read
        if dependence.is_positions(operand)
        and sum(isinstance(size, str) for size in nodes[operand].shape or ()) > 1
    ))  # fmt: skip


def _by_products(dependence: Dependence, at: TracedNode) -> _AttentionNodes:
    """The connected nodes with a number for each pair of tokens, around a softmax."""
    nodes, inside, stack = dependence.description.nodes, set(), [at.name]
    lasts: list[str] = []
    while stack:
        name = stack.pop()
        if name in inside:
            continue
        inside.add(name)
        stack += [operand for operand in nodes[name].operands if dependence.is_mixing(operand)]
        stack += [each for each in dependence.token_operands(name) if each in dependence.of_scores]
        for user in dependence.users.get(name, ()):
            if dependence.is_mixing(user) or user in dependence.of_scores:
                stack.append(user)
            elif dependence.on_tokens(user):
                lasts.append(user)
    shares = _weighed(dependence, inside, lasts)
    inside |= {shares} - {""}
    lasts = [name for name in lasts if name != shares]
    scores = [
        name
        for name in nodes
        if name in inside and name != shares and len(_outside(dependence, name, inside)) == 2
    ]
    joined = [nodes[name] for name in nodes if name in inside and op_name(nodes[name]) == "cat"]
    if len(scores) != 1 or len(set(lasts)) != 1:
        raise ArchitectureError(
            f"{at.told}: mixes tokens in a way that is no attention that `graphml import` knows"
        )
    query, key = dependence.token_operands(scores[0])
    values = _outside(dependence, shares or lasts[0], inside)
    if len(values) != 1:
        raise ArchitectureError(f"{nodes[lasts[0]].told}: wanted attention's weights times one value")
    members = [nodes[name] for name in nodes if name in inside]
    for node in members:
        if set(_outside(dependence, node.name, inside)) - {query, key, values[0]}:
            raise _mask_of_tokens(dependence, node.name)
    masks = _masks(dependence, inside)
    sinks = _sinks(dependence, joined[0].operands, joined[0].told) if joined else ""
    if shares:
        of_rows = [node for node in members if node.name in dependence.of_scores]
        sinks = _sinks(dependence, [operand for node in of_rows for operand in node.operands], at.told)
    return _AttentionNodes(query, key, values[0], lasts[0], masks, False, sinks)


def _weighed(dependence: Dependence, inside: set[str], lasts: Sequence[str]) -> str:
    """The weights times the values, where a number of each token's scores weighs them behind; empty for none.

    So sinks may be written: the sigmoid of how far the scores' sum is above them.
    """
    if len(set(lasts)) != 2:
        return ""
    for first in set(lasts):
        (second,) = {*lasts} - {first}
        if [name for name in dependence.token_operands(second) if name not in inside] == [first]:
            return first
    return ""


def _sinks(dependence: Dependence, operands: Sequence[str], place: str) -> str:
    """The parameter that is joined to the scores, one for each head."""
    name = next(
        (each for each in operands if not dependence.is_mixing(each) and not dependence.on_tokens(each)),
        "",
    )
    while name and not dependence.is_parameters(name):
        node = dependence.description.nodes.get(name)
        moves = node is not None and op_name(node) in MOVES
        name = node.operands[0] if node is not None and moves else ""
    if not name:
        raise ArchitectureError(
            f"{place}: joins scores of attention with values that are no parameter of each head, as sinks are"
        )
    return name


def _mask_of_tokens(dependence: Dependence, name: str) -> ArchitectureError:
    line = dependence.description.nodes[name].told
    return ArchitectureError(f"{line}: attention whose mask or bias depends on values of tokens")


class _Runs:
    """Runs an attention on q, k, v [T, head, d]."""

    def __init__(self, dependence: Dependence, match: _AttentionNodes) -> None:
        self.dependence, self.found = dependence, match
        nodes = dependence.description.nodes
        self.shapes = {
            role: nodes[name].shape or ()
            for role, name in (("query", match.query), ("key", match.key), ("value", match.value))
            if name
        }
        self.last = nodes[match.last].shape or ()

    def sizes(self, role: str) -> tuple[int, int]:
        """Heads and their width, as this operand has them."""
        rest = [size for size in self.shapes[role] if isinstance(size, int)]
        if not rest:
            problem = f"attention reads a {role} of shape {list(self.shapes[role])}: wanted heads and widths"
            raise ArchitectureError(f"{self.dependence.description.nodes[self.found.last].told}: {problem}")
        return int(np.prod(rest[:-1])), rest[-1]

    def run(self, q: Array, k: Array, v: Array) -> Array:
        """The last node's value."""
        entries = {}
        for (role, shape), x in zip(self.shapes.items(), (q, k, v), strict=False):
            axis = next((i for i, size in enumerate(shape) if isinstance(size, str)), None)
            if axis is None:
                raise ArchitectureError(
                    f"{self.dependence.description.nodes[self.found.last].told}: was traced at one length: "
                    "the model's Python depends on the length"
                )
            rest = tuple(size for size in shape if isinstance(size, int))
            if np.prod(rest) * len(x) != x.size:
                raise ArchitectureError(
                    f"{self.dependence.description.nodes[self.found.last].told}: attention reads a {role} of "
                    f"shape {list(shape)}: wanted heads and widths"
                )
            entries[getattr(self.found, role)] = np.moveaxis(x.reshape(len(x), *rest), 0, axis)
        return run(self.dependence, entries, self.found.last, len(q))

    def __call__(self, q: Array, k: Array, v: Array) -> Array:
        """Out [T, head, d]."""
        out = self.run(q, k, v)
        axis = next(i for i, size in enumerate(self.last) if isinstance(size, str))
        return np.moveaxis(out.reshape(concrete(self.last, len(q))), axis, 0).reshape(
            len(q), *self.out_sizes()
        )

    def out_sizes(self) -> tuple[int, int]:
        """Heads of the queries, and width of the values."""
        return self.sizes("query")[0], self.sizes("value")[1]


class _MapRuns(_Runs):
    """Runs a softmax map, whose weights are multiplied with values here."""

    def sizes(self, role: str) -> tuple[int, int]:
        """Heads and their width, as this operand has them; values are as wide as they must be."""
        return (super().sizes("key")[0], WIDE) if role == "value" else super().sizes(role)

    def __call__(self, q: Array, k: Array, v: Array) -> Array:
        """Out [T, head, d]."""
        shares = self.run(q, k, v).reshape(-1, len(q), len(q))
        out: Array = np.einsum("hij,jhd->ihd", shares, np.repeat(v, len(shares) // v.shape[1], 1))
        return out


def _fitted(dependence: Dependence, node: TracedNode, roles: _AttentionNodes) -> Recognised:
    runs = _Runs(dependence, roles) if roles.value else _MapRuns(dependence, roles)
    (heads, width), (kv, _), (_, wide) = (runs.sizes(role) for role in ("query", "key", "value"))

    def weights(q: Array, k: Array) -> Array:
        """log of how much token i sees of token j: [T, T, head]; by values that name their token."""
        if wide < len(q):
            raise ArchitectureError(
                f"{node.told}: heads of width {wide} are narrower than `graphml import` can fit"
            )
        v = np.zeros((len(q), kv, wide))
        v[np.arange(len(q)), :, np.arange(len(q))] = 1.0
        with np.errstate(divide="ignore"):
            return np.log(np.moveaxis(runs(q, k, v)[:, :, : len(q)], 2, 1))

    n = min(T, wide)
    zero = weights(np.zeros((n, heads, width)), np.zeros((n, kv, width)))
    window, chunk = reach(dependence, node, roles.masks, roles.causal, zero)
    bias = zero - zero[np.arange(n), np.arange(n)][:, None]
    scale = _scale(weights, n, (heads, kv, width), bias)
    cap = _cap(weights, (heads, kv, width), scale)
    slopes = _slopes(bias, n)
    max_bias = 0.0
    if slopes is not None:
        max_bias = 8.0
        if not same(slopes, alibi_slopes(heads, max_bias), 1e-5):
            raise ArchitectureError(f"{node.told}: a bias by distance that is not ALiBi with 8")
    numbers = {
        "scale": scale,
        "window": window,
        "chunk": chunk,
        "softcap": cap,
        "max_bias": max_bias,
        "head": heads,
        "head_kv": kv,
    }
    sinks = np.log(np.expm1(-zero[0, 0])) if roles.sinks else None
    if sinks is not None:
        held = np.asarray(run(dependence, {}, roles.sinks, n)).reshape(-1)
        if held.shape != sinks.shape or not same(held, sinks, 1e-6):
            raise ArchitectureError(f"{node.told}: wanted a parameter of each head beside the scores")
    for size in SIZES:
        _check(runs, node, numbers, (heads, kv, width, wide), sinks, size)
    entries = {"q": roles.query, "k": roles.key, "v": roles.value}
    if not roles.value:
        return Recognised("softmax map", roles.last, {"q": roles.query, "k": roles.key}, {}, numbers)
    of_heads = {"weight": roles.sinks} if roles.sinks else {}
    return Recognised("attend", roles.last, entries, of_heads, numbers)


def _scale(weights: Callable[..., Array], n: int, sizes: tuple[int, int, int], bias: Array) -> float:
    heads, kv, width = sizes
    generator = np.random.default_rng(5)
    q, k = (
        1e-2 * generator.standard_normal((n, heads, width)),
        1e-2 * generator.standard_normal((n, kv, width)),
    )
    got = weights(q, k)
    with np.errstate(invalid="ignore"):
        own = got[np.arange(n), np.arange(n)]
        got = got - own[:, None] - bias
    products = np.einsum("ihd,jhd->ijh", q, np.repeat(k, heads // kv, 1))
    products = products - products[np.arange(n), np.arange(n)][:, None]
    below = np.tril_indices(n, -1)
    a, b = products[below].reshape(-1), got[below].reshape(-1)
    seen = np.isfinite(b)
    return float(f"{float(a[seen] @ b[seen] / (a[seen] @ a[seen])):.8g}")


def _cap(weights: Callable[..., Array], sizes: tuple[int, int, int], scale: float) -> float:
    """The limit of scores, from two tokens whose scores are far above and far below it."""
    heads, kv, width = sizes
    q, k = np.ones((2, heads, width)), np.ones((2, kv, width))
    k[1] = -1.0
    got = weights(1e6 * q / (abs(scale) * width), k)[1]
    apart = float(abs(got[0, 0] - got[1, 0]))
    return float(f"{apart / 2:.6g}") if np.isfinite(apart) and apart < 1e5 else 0.0


def _slopes(bias: Array, n: int) -> Array | None:
    """What a step of distance takes from the scores of each head; None if nothing."""
    first = bias[n - 1, n - 2]
    if not np.all(np.isfinite(first)) or np.max(np.abs(first)) < 1e-9:
        return None
    slopes: Array = -first
    return slopes


def alibi_slopes(heads: int, max_bias: float) -> Array:
    """ALiBi's slopes for each head (arXiv:2108.12409), as ggml has them."""
    power = 1 << (heads.bit_length() - 1)
    first, second = 2.0 ** (-max_bias / power), 2.0 ** (-max_bias / 2 / power)
    return np.array(
        [first ** (h + 1) if h < power else second ** (2 * (h - power) + 1) for h in range(heads)]
    )


def _check(
    runs: _Runs,
    node: TracedNode,
    numbers: dict[str, Any],
    sizes: tuple[int, int, int, int],
    sinks: Array | None,
    size: float,
) -> None:
    """Attention with these numbers, on random values, must agree. size: of the queries."""
    heads, kv, width, wide = sizes
    n = 9
    generator = np.random.default_rng(6)
    q, k, v = (
        generator.standard_normal((n, count, d)) for count, d in ((heads, width), (kv, width), (kv, wide))
    )
    q *= size
    scores = np.einsum("ihd,jhd->hij", q, np.repeat(k, heads // kv, 1)) * numbers["scale"]
    if numbers["softcap"]:
        scores = numbers["softcap"] * np.tanh(scores / numbers["softcap"])
    i, j = np.arange(n)[:, None], np.arange(n)[None]
    if numbers["max_bias"]:
        scores = scores - alibi_slopes(heads, numbers["max_bias"])[:, None, None] * (i - j)
    seen = (j <= i) & ((i - j < numbers["window"]) | (not numbers["window"]))
    seen = seen & ((i // max(numbers["chunk"], 1) == j // max(numbers["chunk"], 1)) | (not numbers["chunk"]))
    scores = np.where(seen, scores, -np.inf)
    if sinks is not None:
        scores = np.concatenate([scores, np.broadcast_to(sinks[:, None, None], (heads, n, 1))], -1)
    shares = softmax(scores, -1)[..., :n]
    wanted = np.einsum("hij,jhd->ihd", shares, np.repeat(v, heads // kv, 1))
    if not same(runs(q, k, v), wanted, 1e-6):
        raise ArchitectureError(f"{node.told}: attention that agrees with no `attend`: {numbers}")
