"""`route_experts`: each token's experts and their weights, from a router's scores."""

from __future__ import annotations

from graphml.errors import ShapeError
from graphml.ir.fused import fused_op
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.op import Attribute, Op, Sample, Term
from graphml.ir.ops.elementwise import add, sigmoid
from graphml.ir.ops.index import gather, top_k
from graphml.ir.ops.reduce import softmax
from graphml.ir.ops.rules import ROWS, f32
from graphml.passes.fusion import Fusion
from graphml.passes.fusions.experts import gather_normalise
from graphml.passes.rewrite import Match, Refusal

SCORES = ("softmax", "sigmoid", "softmax_of_chosen")


def _decompose(
    g: Builder,
    x: Node,
    *extra: Node,
    k: int,
    score: str,
    bias: bool,
    normalise: bool,
    low: float,
    high: float,
) -> tuple[Node, Node]:
    """X [T, E], bias [E] -> the k experts with the highest scores (plus bias), i32 [T, k], and their weights.

    score: `softmax` or `sigmoid` of x, or x itself with a softmax over the chosen scores. normalise: weights
    are divided by their sum, clamped to [low, high]. The bias changes the choice, not the weights
    (DeepSeek-V3, arXiv:2412.19437).
    """
    if score not in SCORES or len(extra) != bias:
        wanted = f"{int(bias)} operands after x and a score of {', '.join(SCORES)}"
        raise ShapeError(f"wanted {wanted}; got {list(extra)}, {score!r}")
    scores = {"softmax": g.softmax, "sigmoid": g.sigmoid}[score](x) if score in SCORES[:2] else x
    ids = g.top_k(g.add(scores, extra[0]) if bias else scores, k)
    weights = g.gather(scores, ids)
    if score == "softmax_of_chosen":
        weights = g.softmax(weights)
    if normalise:
        weights = g.div(weights, g.clamp(g.sum_rows(weights), low, high))
    return ids, weights


def _samples() -> list[Sample]:
    x, bias = f32(ROWS, 12), f32(12)
    normalised = {"k": 3, "normalise": True, "low": 0.5, "high": 2.0}
    return [
        Sample((f32(ROWS, 37),), {"k": 8, "normalise": True, "low": 1e-4}),
        Sample((x,), {"k": 3}),
        Sample((x,), {"score": "sigmoid", **normalised}),
        Sample((x, bias), {"score": "sigmoid", "bias": True, **normalised}),
        Sample((x,), {"k": 4, "score": "softmax_of_chosen"}),
    ]


route_experts = fused_op(
    "route_experts",
    _decompose,
    _samples,
    {"k": None, "score": "softmax", "bias": False, "normalise": False, "low": 0.0, "high": float("inf")},
)


def _chosen(score: Op, weigh: Op, x: str, *bias: str) -> tuple[Term, Term]:
    scores = score(x)
    ids = top_k(add(scores, *bias) if bias else scores)
    return ids, weigh(scores, ids)


def _softmax_of_chosen(x: str) -> tuple[Term, Term]:
    ids = top_k(x)
    return ids, softmax(gather(x, ids))


def _attributes(match: Match) -> dict[str, Attribute]:
    ids, weights = match.results
    ops = {node.op for node in match.covered}
    normalise = weights.op is gather_normalise
    limits = {name: weights.attributes[name] for name in ("low", "high")} if normalise else {}
    score = "softmax_of_chosen" if weights.op is softmax else "sigmoid" if sigmoid in ops else "softmax"
    bias = "bias" in match.variables
    return {"k": ids.attributes["k"], "score": score, "bias": bias, "normalise": normalise, **limits}


def _of_floats(match: Match) -> Refusal | None:
    x, bias = match.variables["x"], match.variables.get("bias")
    if x.dtype.name != "f32" or len(x.shape) != 2:
        return Refusal(f"{x.name} is {x.type!r}, not one row of scores for each token", x)
    if bias is not None and bias.shape != x.shape[-1:]:
        return Refusal(f"{bias.name} is not one number for each expert", bias)
    return None


FUSION = Fusion(
    "route_experts",
    find=(
        lambda x: _chosen(softmax, gather_normalise, x),
        lambda x: _chosen(sigmoid, gather_normalise, x),
        lambda x, bias: _chosen(softmax, gather_normalise, x, bias),
        lambda x, bias: _chosen(sigmoid, gather_normalise, x, bias),
        lambda x: _chosen(softmax, gather, x),
        lambda x: _chosen(sigmoid, gather, x),
        lambda x, bias: _chosen(softmax, gather, x, bias),
        lambda x, bias: _chosen(sigmoid, gather, x, bias),
        lambda x: _softmax_of_chosen(x),
    ),
    replace=route_experts,
    when=_of_floats,
    attributes=_attributes,
    last=True,
)
