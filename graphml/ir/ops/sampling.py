"""Drawing a token where its logits are. What is drawn here foretells what a sampler on the host decides."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphml.errors import ShapeError
from graphml.ir.dtype import F32, I32
from graphml.ir.op import Array, Attributes, Op, Sample, Type
from graphml.ir.ops.rules import ROWS, below, f32, i32, want_dtype

SETTINGS = ("inverse_temperature", "top_k", "top_p", "min_p", "number")
"""What a row of settings holds. top_k 0, top_p 1 and min_p 0 are off; number: drawn from [0, 1)."""


def _infer_draw(inputs: Sequence[Type], attributes: Attributes) -> Type:
    ids, logits, log_sum, settings = inputs
    want_dtype(ids, I32, "ids")
    for value, role in ((logits, "logits"), (log_sum, "log_sum"), (settings, "settings")):
        want_dtype(value, F32, role)
    rows = ids.shape[:1]
    wanted = (ids.shape, (*rows, 1), (*rows, len(SETTINGS)))
    if len(ids.shape) != 2 or (logits.shape, log_sum.shape, settings.shape) != wanted:
        raise ShapeError(
            f"wanted ids and logits [O, k], log_sum [O, 1], settings [O, {len(SETTINGS)}]; got {ids},"
            f" {logits}, {log_sum}, {settings}"
        )
    return Type(I32, rows)


def _draw(inputs: Sequence[Array], attributes: Attributes) -> Array:
    places = [_place(*row) for row in zip(*inputs[1:], strict=True)]
    return inputs[0][np.arange(len(places)), places].astype(np.int32)


def _place(logits: Array, log_sum: Array, settings: Array) -> int:
    """Which of the best is drawn; logits [k], the largest first."""
    inverse_temperature, top_k, top_p, min_p, number = settings
    below_best = (logits[: int(top_k)] if top_k > 0 else logits) - logits[0]
    running = np.cumsum(np.exp(below_best), dtype=np.float32)
    whole = running[-1] if top_k > 0 else np.exp(log_sum[0] - logits[0])
    kept = len(below_best)
    if top_p < 1:
        kept = min(kept, 1 + int((running < top_p * whole).sum()))
    if min_p > 0:
        kept = min(kept, max(1, int((below_best >= np.log(min_p)).sum())))
    running = np.cumsum(np.exp(below_best[:kept] * inverse_temperature), dtype=np.float32)
    return min(int((running <= number * running[-1]).sum()), kept - 1)


def _falling(generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return -np.sort(-2.0 * generator.standard_normal(shape).astype(np.float32), axis=-1)


def _log_sums(generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return generator.uniform(5.0, 6.0, shape).astype(np.float32)


def _settings(generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Of each row others; the number lies away from the edges between tokens only by chance."""
    columns = [
        generator.choice([0.5, 1.0, 2.0], shape[0]),
        generator.choice([0, 1, 3, 100], shape[0]),
        generator.choice([0.0, 0.3, 0.9, 1.0], shape[0]),
        generator.choice([0.0, 0.1, 1.0], shape[0]),
        generator.random(shape[0]),
    ]
    return np.stack(columns, axis=-1).astype(np.float32)


draw = Op(
    "draw", "index", infer=_infer_draw, reference=_draw,
    samples=lambda: [Sample((i32(ROWS, k), f32(ROWS, k), f32(ROWS, 1), f32(ROWS, len(SETTINGS))), {},
                            {0: below(1000), 1: _falling, 2: _log_sums, 3: _settings})
                     for k in (1, 8, 64)],
)  # fmt: skip
