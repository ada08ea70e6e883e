"""What the recurrent ops of a trace compute, in NumPy: `peers/recurrent_functions.py` has them for torch.

B texts, T tokens, N heads, G heads of keys, P, K and V widths, S state size. Knows arrays; nothing of graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Array = Any
Arguments = Mapping[str, Any]


def ssm_scan(a: Arguments) -> Array:
    """state = e^(step a) state + step x b, y = state c + d x, where step is the softplus of dt."""
    x, step, fading, d = a["x"], np.logaddexp(0.0, a["dt"]), a["a"], a["d"]
    b, c = (np.repeat(matrix, x.shape[2] // matrix.shape[2], 2) for matrix in (a["b"], a["c"]))
    fading = fading.reshape(len(fading), 1, -1)
    state = np.zeros((*x[:, 0].shape, b.shape[-1]))
    y = np.zeros(x.shape)
    for t in range(x.shape[1]):
        step_t = step[:, t, :, None, None]
        state = state * np.exp(step_t * fading) + step_t * x[:, t, :, :, None] * b[:, t, :, None]
        y[:, t] = (state * c[:, t, :, None]).sum(-1) + x[:, t] * d[:, None]
    return y


def delta_rule(a: Arguments) -> Array:
    """S = S decay; S += beta (v - S k) k^T; y = scale S q."""
    v, decay, beta = a["v"], a["decay"], a["beta"]
    q, k = (np.repeat(each, v.shape[2] // each.shape[2], 2) for each in (a["q"], a["k"]))
    state = np.zeros((*v[:, 0].shape, k.shape[-1]))
    y = np.zeros(v.shape)
    for t in range(v.shape[1]):
        state = state * decay[:, t, :, None]
        wrong = v[:, t] - (state * k[:, t, :, None]).sum(-1)
        state = state + (beta[:, t, :, None] * wrong)[..., None] * k[:, t, :, None]
        y[:, t] = a["scale"] * (state * q[:, t, :, None]).sum(-1)
    return y


def decayed_sum(a: Arguments) -> Array:
    """A linear recurrence of each element: state = decay state + x."""
    x, decay, y = a["x"], a["decay"], np.zeros(a["x"].shape)
    for t in range(x.shape[1]):
        y[:, t] = decay[:, t] * y[:, t - 1] + x[:, t] if t else x[:, t]
    return y


RECURRENCES: Mapping[str, Callable[[Arguments], Array]] = {
    "ssm_scan": ssm_scan,
    "delta_rule": delta_rule,
    "decayed_sum": decayed_sum,
}
