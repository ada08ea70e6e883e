"""Experts as DeepSeek has them: many small ones to choose from, beside some that all tokens share.

Dai et al. 2024 (arXiv:2401.06066); scores by sigmoid with a bias for the choice alone, and the choice limited
to groups of experts: DeepSeek-V3 (2024, arXiv:2412.19437). T tokens, D model width, E experts, U used per
token, F hidden.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.shape import fixed
from graphml.loading.architecture import Keys, Layer
from graphml_models import _config
from graphml_models._experts import Chosen, normalised, swiglu
from graphml_models._ffn import Product, gated_ffn

GATING = "expert_gating_func"  # a number of llama.cpp's
SOFTMAX, SIGMOID, ROOT = 1, 2, 4  # the last: the root of softplus
BIAS = "exp_probs_b.bias"
BY_BEST = "expert_groups_by_best"  # of folders; llama.cpp has the two best for all


@dataclass(frozen=True)
class Routing:
    """How scores become experts and weights.

    gating: what makes shares of scores, see `shares`; normalise: weights of a token's experts sum to 1;
    scale: of these weights; n_group, n_group_used: groups of experts, and how many of them may be chosen
    from; by_best: whether a group counts as much as its best expert, not as its two best; bias: the tensor
    that is added to shares for the choice alone; scaled: the matrices, see
    `Tensors.scale`.
    """

    n_used: int
    gating: int
    normalise: bool
    scale: float
    n_group: int
    n_group_used: int
    by_best: bool = False
    bias: str = BIAS
    scaled: bool = False

    @classmethod
    def read(cls, keys: Keys, gating: int = SOFTMAX, n_used: int | None = None) -> Self:
        """From the file's metadata; gating: where it does not say; n_used: of one layer."""
        gating = keys.integer(GATING, 0) or gating
        if gating not in (SOFTMAX, SIGMOID, ROOT):
            kinds = f"{SOFTMAX} for softmax, {SIGMOID} for sigmoid or {ROOT} for the root of softplus"
            raise keys.unsupported(GATING, kinds)
        return cls(
            n_used=keys.integer("expert_used_count") if n_used is None else n_used,
            gating=gating,
            normalise=keys.boolean("expert_weights_norm", False),
            scale=keys.number("expert_weights_scale", 0.0) or 1.0,
            n_group=keys.integer("expert_group_count", 0),
            n_group_used=keys.integer("expert_group_used_count", 0),
            by_best=keys.boolean(BY_BEST, False),
        )


@dataclass(frozen=True)
class Config(_config.Config):
    """As of every decoder, and how experts are chosen."""

    routing: Routing

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        known = _config.read(keys)
        return cls(**vars(known), routing=Routing.read(keys))


@dataclass(frozen=True)
class NormalisedConfig(Config):
    """Weights of a token's experts sum to 1, which files do not say."""

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        known = Config.read(keys)
        return cls(**vars(replace(known, routing=replace(known.routing, normalise=True))))


def shares(g: Builder, gating: int, scores_TE: Node) -> Node:
    """What the router's scores make each expert's share: their softmax, sigmoid, or root of softplus."""
    if gating == ROOT:
        return g.sqrt(g.softplus(scores_TE))
    return g.sigmoid(scores_TE) if gating == SIGMOID else g.softmax(scores_TE)


def choose(g: Builder, routing: Routing, layer: Layer, x_TD: Node, ids_TU: Node | None = None) -> Chosen:
    """The experts of each token and the weights of their outputs.

    Those whose shares plus the bias are largest, or those of ids_TU, i32 [T, U]; shares are the weights.
    """
    shares_TE = shares(g, routing.gating, layer.linear(x_TD, "ffn_gate_inp", "router"))
    n_expert = 0 if ids_TU is None else fixed(shares_TE.shape[1])
    if ids_TU is None:
        bias_E = layer.get(routing.bias)
        choice_TE = shares_TE if bias_E is None else g.add(shares_TE, bias_E, "choice")
        if routing.n_group > 1:
            choice_TE = within_groups(g, routing, choice_TE)
        ids_TU = g.top_k(choice_TE, routing.n_used, "experts")
    weights_TU = g.gather(shares_TE, ids_TU, "expert_weights")
    if routing.normalise:
        weights_TU = normalised(g, weights_TU)
    if routing.scale != 1.0:
        weights_TU = g.scale(weights_TU, routing.scale, name="expert_weights_scaled")
    return Chosen(g, layer, ids_TU, weights_TU, routing.scaled, n_expert)


def within_groups(g: Builder, routing: Routing, choice_TE: Node) -> Node:
    """The choice within the groups that may be chosen from, else minus infinity."""
    n_group, used = routing.n_group, routing.n_group_used
    if not routing.by_best:
        return g.top_k_groups(choice_TE, n_group, used)
    n_expert = fixed(choice_TE.shape[1])  # each twice: then the two best of a group are its best
    groups_TGE = g.reshape(choice_TE, n_group, n_expert // n_group)
    twice_TE = g.reshape(g.concat(groups_TGE, groups_TGE), 2 * n_expert)
    within_TGE = g.reshape(g.top_k_groups(twice_TE, n_group, used), n_group, 2 * n_expert // n_group)
    return g.reshape(g.columns(within_TGE, 0, n_expert // n_group), n_expert)


def shared_and_chosen(
    g: Builder,
    config: Config,
    layer: Layer,
    x_TD: Node,
    product: Product = swiglu,
    shared: Product = swiglu,
    ids_TU: Node | None = None,
) -> Node:
    """SwiGLU in layers without a router, in others experts beside those that all tokens share, [T, D].

    product: of the chosen experts' gates and what they let through; shared: of those that all tokens go
    through; ids_TU: the experts of each token where the router does not choose them.
    """
    routing = config.routing
    if layer.get("ffn_gate_inp") is None:
        return gated_ffn(g, layer, x_TD, scaled=routing.scaled, product=shared)
    chosen = choose(g, routing, layer, x_TD, ids_TU)
    chosen_TD = chosen.combine(chosen.gated(x_TD, product))
    if layer.get("ffn_up_shexp", "ffn_gate_shexp", "ffn_down_shexp") is None:
        return chosen_TD
    shared_TD = gated_ffn(g, layer, x_TD, suffix="_shexp", scaled=routing.scaled, product=shared)
    return g.add(chosen_TD, shared_TD, "experts")
