"""Causal convolutions along the text: of each channel by itself, or of all channels as a product of shifts.

Knows one node at a time; nothing of states' names or layers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from graphml.authoring.importing.description import TracedNode
from graphml.authoring.importing.expressions import Expression, T, View, Weight
from graphml.authoring.importing.token_shifts import (
    FAR,
    FURTHEST,
    concatenated,
    of_all_tokens,
    shifted,
    token_axis,
    tokens_along,
)
from graphml.authoring.importing.walked import Walked


def convolution(walk: Walked, node: TracedNode) -> View:
    """A convolution, whose results may be read as far as they read no later tokens than their own."""
    args, view, axis = node.args, walk.view(node.args["input"]["node"]), token_axis(node)
    stride, apart, padding = (
        _single(args.get(name), default) for name, default in (("stride", 1), ("dilation", 1), ("padding", 0))
    )
    if stride != 1 or axis != view.codes.ndim - 1:
        raise ValueError(f"a convolution of stride {stride}: wanted 1, along the tokens")
    tokens = tokens_along(view, axis)
    if np.any(np.diff(tokens) != 1) or (padding and tokens[0] > 0):
        raise ValueError("a convolution over tokens that do not follow one another from the first on")
    of_token = of_all_tokens(view, axis)
    x = walk.select.taken(of_token, (int(of_token.elements.size),))
    y = walk.select.kept(_convolved(walk, node, x, apart))
    reach = apart * (walk.weight(args["weight"]["node"]).shape[-1] - 1)
    last = int(tokens[0]) - padding + reach + np.arange(len(tokens) + 2 * padding - reach)
    if args.get("bias"):  # before the text it is no zero
        last = np.where(last < 0, last % T + FAR, last)
    codes = np.arange(y.size)[:, None] + last * y.size
    return View(y, codes.reshape((1,) * (view.codes.ndim - 2) + codes.shape))


def _convolved(walk: Walked, node: TracedNode, x: Expression, apart: int) -> Expression:
    """The convolution of each token with those before it. apart: tokens from one that is read to the next."""
    weight, groups = walk.weight(node.args["weight"]["node"]), int(node.args.get("groups", 1))
    weights = {"weight": weight}
    if node.args.get("bias"):
        weights["bias"] = walk.weight(node.args["bias"]["node"])
    channels, _, kernel = weight.shape
    if apart * (kernel - 1) > FURTHEST:
        raise ValueError(f"reads {apart * (kernel - 1)} tokens before: wanted at most {FURTHEST}")
    if groups == channels == x.size and kernel > 1:
        numbers = {"apart": apart}
        return Expression("conv", (x,), (channels,), node.path, node.told, weights, numbers)
    if groups != 1:
        raise ValueError(f"a convolution of {kernel} tokens in {groups} groups of {x.size} channels")
    taps = concatenated(walk, node, [shifted(walk, node, x, apart * (kernel - 1 - i)) for i in range(kernel)])
    weights["weight"] = Weight(weight.source, (channels, kernel * x.size), (0, 2, 1))
    return Expression("linear", (taps,), (channels,), node.path, node.told, weights)


def _single(value: Any, default: int) -> int:
    """The one number of a list."""
    number, *others = value if isinstance(value, list) else [default if value is None else value]
    if others or not isinstance(number, int):
        raise ValueError(f"a convolution of {value}: wanted one number of tokens")
    return number
