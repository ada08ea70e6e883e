"""Rotary position embedding (Su et al. 2021, arXiv:2104.09864), in two ops.

`rope_table` turns positions into cosines and sines once per step; `rope` applies them in every layer.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphml.errors import GraphError, ShapeError
from graphml.ir.dtype import F32, I32
from graphml.ir.op import Array, Attributes, Op, Sample, Type, integer, number
from graphml.ir.ops.rules import ROWS, below, f32, i32, want_dtype
from graphml.ir.shape import bound


def _infer_table(inputs: Sequence[Type], attributes: Attributes) -> Type:
    want_dtype(inputs[0], I32, "positions")
    n_rot = integer(attributes, "n_rot")
    half = n_rot // 2
    if n_rot % 2 or half < 1:
        raise ShapeError(f"wanted an even n_rot; got {n_rot}")
    at = {name: number(attributes, name) for name in attributes}
    positive = ["freq_base", "freq_scale", *(["n_ctx_orig"] if at["ext_factor"] else [])]
    if not all(0.0 < at[name] < np.inf for name in positive):
        raise GraphError(f"wanted {', '.join(positive)} above 0; got {[at[name] for name in positive]}")
    if len(inputs) > 1 and inputs[1].shape != (half,):
        raise ShapeError(f"wanted rope factors [{half}]; got {inputs[1]}")
    return Type(F32, (inputs[0].shape[0], half, 2))


def frequencies(attributes: Attributes, factors: Array | None) -> Array:
    """Angle per position of each pair of dimensions: float64 [n_rot / 2].

    `factors` divide them (llama 3), then `freq_scale` and YaRN (Peng et al. 2023, arXiv:2309.00071) apply.
    """
    at = {name: number(attributes, name) for name in attributes}
    n_rot = integer(attributes, "n_rot")
    plain: Array = at["freq_base"] ** (-np.arange(0, n_rot, 2, dtype=np.float64) / n_rot)
    if factors is not None:
        plain = plain / factors.astype(np.float64)
    if at["ext_factor"] == 0.0:
        return plain * at["freq_scale"]

    def correction(beta: float) -> float:
        turns = at["n_ctx_orig"] / (beta * 2.0 * np.pi)
        return float(n_rot * np.log(turns) / (2.0 * np.log(at["freq_base"])))

    low = max(0.0, np.floor(correction(at["beta_fast"])))
    high = min(n_rot - 1.0, np.ceil(correction(at["beta_slow"])))
    pair = np.arange(n_rot // 2, dtype=np.float64)
    ramp = 1.0 - np.clip((pair - low) / max(0.001, high - low), 0.0, 1.0)
    mix = ramp * at["ext_factor"]
    return np.asarray(plain * at["freq_scale"] * (1.0 - mix) + plain * mix)


def magnitude(attributes: Attributes) -> float:
    """YaRN's factor of cosine and sine."""
    at = {name: number(attributes, name) for name in attributes}
    if at["ext_factor"] == 0.0:
        return at["attn_factor"]
    return at["attn_factor"] * (1.0 + 0.1 * float(np.log(1.0 / at["freq_scale"])))


def _table(inputs: Sequence[Array], attributes: Attributes) -> Array:
    factors = inputs[1] if len(inputs) > 1 else None
    angle = inputs[0][:, None].astype(np.float64) * frequencies(attributes, factors)
    return np.asarray(np.stack([np.cos(angle), np.sin(angle)], -1) * magnitude(attributes), dtype=np.float32)


def _infer_rope(inputs: Sequence[Type], attributes: Attributes) -> Type:
    x, table = inputs
    want_dtype(x, F32, "x")
    want_dtype(table, F32, "table")
    fits = len(x.shape) == 3 and len(table.shape) == 3 and table.shape[::2] == (x.shape[0], 2)
    if not fits or 2 * bound(table.shape[1]) > bound(x.shape[2]):
        raise ShapeError(f"wanted x [T, head, d] and a table [T, n_rot / 2, 2], n_rot <= d; got {x}, {table}")
    if attributes["mode"] not in ("norm", "neox"):
        raise ShapeError(f"wanted mode 'norm' or 'neox'; got {attributes['mode']!r}")
    return x


def _rope(inputs: Sequence[Array], attributes: Attributes) -> Array:
    x, table = inputs
    half = table.shape[1]
    cos, sin = table[:, None, :, 0], table[:, None, :, 1]
    y = x.copy()
    if attributes["mode"] == "norm":
        first, second = x[..., 0 : 2 * half : 2], x[..., 1 : 2 * half : 2]
        y[..., 0 : 2 * half : 2] = first * cos - second * sin
        y[..., 1 : 2 * half : 2] = first * sin + second * cos
    else:
        first, second = x[..., :half], x[..., half : 2 * half]
        y[..., :half] = first * cos - second * sin
        y[..., half : 2 * half] = first * sin + second * cos
    return y


def _infer_scale(inputs: Sequence[Type], attributes: Attributes) -> Type:
    want_dtype(inputs[0], I32, "positions")
    if integer(attributes, "step") < 1:
        raise GraphError(f"wanted a step of at least 1; got {integer(attributes, 'step')}")
    return Type(F32, (inputs[0].shape[0], 1, 1))


def _scale(inputs: Sequence[Array], attributes: Attributes) -> Array:
    steps = (inputs[0].astype(np.float64) + integer(attributes, "offset")) // integer(attributes, "step")
    scale = 1.0 + number(attributes, "factor") * np.log1p(steps)
    return np.asarray(scale[:, None, None], dtype=np.float32)


def _table_samples() -> list[Sample]:
    yarn = {"n_rot": 64, "ext_factor": 1.0, "freq_scale": 0.25, "n_ctx_orig": 128}
    return [
        Sample((i32(ROWS),), {"n_rot": 64}, {0: below(8192)}),
        Sample((i32(ROWS),), yarn, {0: below(512)}),
        Sample(
            (i32(ROWS), f32(16)),
            {"n_rot": 32},
            {0: below(100), 1: lambda g, s: g.uniform(1, 8, s).astype("f4")},
        ),
    ]


def _rope_samples() -> list[Sample]:
    return [
        Sample((f32(ROWS, 3, d), f32(ROWS, half, 2)), {"mode": mode})
        for d, half in ((64, 32), (80, 16), (6, 3))
        for mode in ("norm", "neox")
    ]


rope_table = Op(
    "rope_table",
    "position",
    infer=_infer_table,
    reference=_table,
    samples=_table_samples,
    attributes={
        "n_rot": None,
        "freq_base": 10000.0,
        "freq_scale": 1.0,
        "ext_factor": 0.0,
        "attn_factor": 1.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "n_ctx_orig": 0,
    },
)
# Queries grow with the logarithm of their position (Nakanishi 2025, arXiv:2501.19399), here in steps.
position_scale = Op(
    "position_scale",
    "position",
    infer=_infer_scale,
    reference=_scale,
    samples=lambda: [
        Sample((i32(ROWS),), {"factor": 0.1, "step": 16, "offset": offset}, {0: below(1000)})
        for offset in (0, 1)
    ],
    attributes={"factor": None, "step": None, "offset": 0},
)
rope = Op("rope", "position", infer=_infer_rope, reference=_rope, samples=_rope_samples,
          attributes={"mode": "norm"}, inplace=(0,))  # fmt: skip
