"""Sampling a token on the device of its logits; the result predicts the decision of the host's sampler."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphml.errors import ShapeError
from graphml.ir.dtype import F32, I32
from graphml.ir.op import Array, Attributes, Op, Sample, Type
from graphml.ir.ops.rules import ROWS, below, f32, i32, want_dtype
from graphml.ir.shape import bounds

SETTINGS = ("inverse_temperature", "top_k", "top_p", "lowest", "number")
"""Columns of a row of settings. top_k 0, top_p 1 and lowest `ANY` are off; number: uniform in [0, 1).

lowest: the limit below the largest logit, log(min_p). With neither top_k nor top_p the token is sampled from
the whole row, in the order of its ids, else from the top k, the largest first.
"""
ANY = -1e30
OF_ROW = ("log_sum", "id", "before", "upto")
"""Results of `sample_row`: the logarithm of the sum of exp(row); the sampled id; the cumulative probability
before it, and with it. The last three are 0 if the token is sampled from the top k."""
_MOST = 1 << 24


def _infer_of_row(inputs: Sequence[Type], attributes: Attributes) -> Type:
    row, top_logits, settings = inputs
    for value, role in ((row, "row"), (top_logits, "top_logits"), (settings, "settings")):
        want_dtype(value, F32, role)
    rows = row.shape[:1]
    if (
        not len(row.shape) == len(top_logits.shape) == 2
        or top_logits.shape[:1] != rows
        or bounds(row.shape)[1] > _MOST
    ):
        raise ShapeError(
            f"wanted row [O, n] with n up to {_MOST}, top_logits [O, k]; got {row}, {top_logits}"
        )
    if settings.shape != (*rows, len(SETTINGS)):
        raise ShapeError(f"wanted settings [O, {len(SETTINGS)}]; got {settings}")
    return Type(F32, (*rows, len(OF_ROW)))


def _sample_row(inputs: Sequence[Array], attributes: Attributes) -> Array:
    results = np.zeros((len(inputs[0]), len(OF_ROW)), np.float32)
    for result, row, top_logits, settings in zip(results, *inputs, strict=True):
        shift = np.clip(top_logits[0], -3e38, 3e38).astype(np.float32)  # no infinity less infinity
        result[0] = _log_sum(row, float(shift))
        if _from_row(settings):
            result[1:] = _of_row(row, shift, settings)
    return results


def _from_row(settings: Array) -> bool:
    return bool(settings[1] <= 0 and settings[2] >= 1)


def _infer_sample_token(inputs: Sequence[Type], attributes: Attributes) -> Type:
    ids, top_logits, of_row, settings = inputs
    want_dtype(ids, I32, "ids")
    for value, role in ((top_logits, "top_logits"), (of_row, "of_row"), (settings, "settings")):
        want_dtype(value, F32, role)
    rows = ids.shape[:1]
    wanted = (ids.shape, (*rows, len(OF_ROW)), (*rows, len(SETTINGS)))
    if len(ids.shape) != 2 or (top_logits.shape, of_row.shape, settings.shape) != wanted:
        raise ShapeError(
            f"wanted ids and top_logits [O, k], of_row [O, {len(OF_ROW)}], settings [O, {len(SETTINGS)}]; got"
            f" {ids}, {top_logits}, {of_row}, {settings}"
        )
    return Type(I32, rows)


def _sample_token(inputs: Sequence[Array], attributes: Attributes) -> Array:
    tokens = np.zeros(len(inputs[0]), np.int32)
    for i, (ids, top_logits, row_values, settings) in enumerate(zip(*inputs, strict=True)):
        tokens[i] = row_values[1] if _from_row(settings) else ids[_place(top_logits, row_values[0], settings)]
    return tokens


def _log_sum(row: Array, shift: float) -> float:
    with np.errstate(divide="ignore", over="ignore"):  # minus infinity for a row of minus infinity
        return float(np.log(np.exp(row.astype(np.float64) - shift).sum()) + shift)


def _of_row(row: Array, shift: np.float32, settings: Array) -> tuple[float, float, float]:
    """The first id whose running sum exceeds number * total; the shares before it and with it. row [n]."""
    inverse_temperature, _, _, lowest, number = settings
    scaled = np.minimum((row - shift) * inverse_temperature, 0.0).astype(np.float64)
    running = np.cumsum(np.where(row >= shift + lowest, np.exp(scaled), 0.0))
    total = running[-1]
    if not total > 0:
        return 0.0, 0.0, 0.0
    chosen = int(np.searchsorted(running, min(number * total, np.nextafter(total, 0.0)), side="right"))
    before = running[chosen - 1] if chosen else 0.0
    return chosen, before / total, running[chosen] / total


def _place(logits: Array, log_sum: Array, settings: Array) -> int:
    """The index of the sampled one among the top k; logits [k], the largest first."""
    inverse_temperature, top_k, top_p, lowest, number = settings
    below_largest = (logits[: int(top_k)] if top_k > 0 else logits) - logits[0]
    running = np.cumsum(np.exp(below_largest), dtype=np.float32)
    whole = running[-1] if top_k > 0 else np.exp(log_sum - logits[0])
    kept = len(below_largest)
    if top_p < 1:
        kept = min(kept, 1 + int((running < top_p * whole).sum()))
    kept = min(kept, max(1, int((logits[:kept] >= logits[0] + lowest).sum())))
    running = np.cumsum(np.exp(below_largest[:kept] * inverse_temperature), dtype=np.float32)
    return min(int((running <= number * running[-1]).sum()), kept - 1)


def _falling(generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return -np.sort(-2.0 * generator.standard_normal(shape).astype(np.float32), axis=-1)


def _settings(generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Different settings for each row; the number may be near the edge between two tokens."""
    columns = [
        generator.choice([0.5, 1.0, 2.0], shape[0]),
        generator.choice([0, 0, 1, 3, 100], shape[0]),
        generator.choice([0.0, 0.3, 0.9, 1.0, 1.0], shape[0]),
        generator.choice([ANY, np.log(0.1), -1.0, 0.0], shape[0]),
        generator.random(shape[0]),
    ]
    return np.stack(columns, axis=-1).astype(np.float32)


def _row_results(generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Sums of 64 falling logits and more, and ids."""
    columns = [generator.uniform(5.0, 6.0, shape[0]), generator.integers(0, 1000, shape[0])]
    return np.stack([*columns, *generator.random((2, shape[0]))], axis=-1).astype(np.float32)


sample_row = Op(
    "sample_row", "reduce", infer=_infer_of_row, reference=_sample_row,
    samples=lambda: [Sample((f32(ROWS, n), f32(ROWS, k), f32(ROWS, len(SETTINGS))), {},
                            {1: _falling, 2: _settings})
                     for n, k in ((1, 1), (64, 8), (700, 3), (9000, 2))],
)  # fmt: skip
sample_token = Op(
    "sample_token", "index", infer=_infer_sample_token, reference=_sample_token,
    samples=lambda: [Sample((i32(ROWS, k), f32(ROWS, k), f32(ROWS, len(OF_ROW)), f32(ROWS, len(SETTINGS))),
                            {}, {0: below(1000), 1: _falling, 2: _row_results, 3: _settings})
                     for k in (1, 8, 64)],
)  # fmt: skip
