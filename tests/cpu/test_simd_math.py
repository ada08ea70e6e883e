"""The mathematical functions of vectors: their stated errors, NaN and infinities."""

import math

import numpy as np
import pytest
from graphml_cpu.compiler import KernelRef, compile_kernels

INF, NAN = math.inf, math.nan
_erf = np.vectorize(math.erf, otypes=[np.float64])


def run(name: str, x: np.ndarray) -> np.ndarray:
    kernel = compile_kernels([KernelRef(name, "cpu_sample_kernels", "make_unary", (name,))])[name]
    out = np.zeros_like(x)
    kernel(kernel.block(x=x.ctypes.data, out=out.ctypes.data, n=len(x)))
    return out


def samples(low: float, high: float) -> np.ndarray:
    rng = np.random.default_rng(0)
    tiny = 10.0 ** rng.uniform(-30, 0, 5000)
    found = np.concatenate([rng.uniform(low, high, 60000), rng.normal(size=60000), tiny, -tiny])
    return found[(found >= low) & (found <= high)].astype(np.float32)


# name, float64 reference, range, error in ulp
WITHIN = [
    ("exp", np.exp, (-104, 88.7), 2),
    ("log", np.log, (1e-45, 3e38), 2),
    ("log1p_exp", lambda x: np.log1p(np.exp(-np.abs(x))) + np.maximum(x, 0), (-87, 1000), 4),
    ("tanh", np.tanh, (-20, 20), 3),
    ("sigmoid", lambda x: 1 / (1 + np.exp(-x)), (-87, 100), 3),
    ("silu", lambda x: x / (1 + np.exp(-x)), (-85, 100), 4),
    ("erf", _erf, (-6, 6), 2),
    ("square_root", np.sqrt, (0, 1e30), 0.5),
    ("round_even", np.round, (-1e7, 1e7), 0),
]


@pytest.mark.parametrize(("name", "reference", "bounds", "ulp"), WITHIN)
def test_errors_are_as_stated(name, reference, bounds, ulp) -> None:  # type: ignore[no-untyped-def]
    x = samples(*bounds)
    wanted = reference(x.astype(np.float64))
    unit = np.spacing(np.maximum(np.abs(wanted).astype(np.float32), np.finfo(np.float32).smallest_subnormal))
    assert (np.abs(run(name, x) - wanted) / unit).max() <= ulp


GELUS = [
    ("gelu_erf", lambda x: 0.5 * x * (1 + _erf(x / np.sqrt(2)))),
    ("gelu_tanh", lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))),
    ("gelu_quick", lambda x: x / (1 + np.exp(-1.702 * x))),
]


@pytest.mark.parametrize(("name", "reference"), GELUS)
def test_gelus(name, reference) -> None:  # type: ignore[no-untyped-def]
    x = samples(-30, 30)
    assert (np.abs(run(name, x) - reference(x.astype(np.float64))) <= 2e-7 * np.maximum(np.abs(x), 1)).all()


LIMITS = [
    ("exp", [-INF, INF, -200, 200, 0], [0, INF, 0, INF, 1]),
    ("log", [0, INF, -1, 1], [-INF, INF, NAN, 0]),
    ("tanh", [-INF, INF, 1e30], [-1, 1, 1]),
    ("sigmoid", [-INF, INF, -200], [0, 1, 0]),
    ("silu", [INF, -200], [INF, -0.0]),
    ("erf", [-INF, INF, 1e30, -50], [-1, 1, 1, -1]),
    ("log1p_exp", [-INF, INF, 1e30], [0, INF, 1e30]),
    ("round_even", [0.5, 1.5, 2.5, -0.5, 1e30, INF], [0, 2, 2, -0.0, 1e30, INF]),
]


@pytest.mark.parametrize(("name", "given", "wanted"), LIMITS)
def test_limits_and_nan(name: str, given: list[float], wanted: list[float]) -> None:
    x = np.array([*given, NAN], np.float32)
    np.testing.assert_array_equal(run(name, x), np.array([*wanted, NAN], np.float32))
