"""Inputs of a step that say which of its rows are of long texts: LongRoPE has other factors for those.

What counts as long is the text's length, as for transformers, or that of the context which was asked for, as
for llama.cpp. Knows names and numbers; nothing of ropes, sequences or steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Literal, NamedTuple

import numpy as np

from graphml.ir.dtype import F32
from graphml.ir.node import Node
from graphml.ir.op import Array
from graphml.ir.step import StepBuilder

Of = Literal["text", "context"]
_PREFIX: Final = "longer."


class LongerThan(NamedTuple):
    """Whether a text, or the context, has more than so many tokens."""

    of: Of
    tokens: int


def long_rows(g: StepBuilder, of: Of, count: int) -> Node:
    """1 for the rows of texts, or in a context, of more than `count` tokens, else 0: f32 [T, 1, 1]."""
    return g.input(f"{_PREFIX}{of}.{count}", F32, (g.n_tokens, 1, 1))


def long_inputs(names: Iterable[str]) -> dict[str, LongerThan]:
    """Those of a graph's inputs that `long_rows` made."""
    parts = {name: name.removeprefix(_PREFIX).split(".") for name in names if name.startswith(_PREFIX)}
    return {
        name: LongerThan("text" if of == "text" else "context", int(count))
        for name, (of, count) in parts.items()
    }


def long_values(inputs: Mapping[str, LongerThan], lengths: Array, n_ctx: int) -> dict[str, Array]:
    """What they are; lengths: of the text of each row, int32 [T]. f32 [T, 1, 1] each."""
    by_kind: Mapping[Of, Array] = {"text": lengths, "context": np.full(len(lengths), n_ctx)}
    return {
        name: (by_kind[of] > count).astype(np.float32).reshape(-1, 1, 1)
        for name, (of, count) in inputs.items()
    }


def is_long(inputs: Mapping[str, LongerThan], length: int) -> bool:
    """Whether a text of so many tokens has other keys than a short one that begins alike."""
    return any(of == "text" and length > count for of, count in inputs.values())
