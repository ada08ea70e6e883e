"""The mathematical functions of vectors: their stated errors, NaN and infinities."""

import math
import re

import numpy as np
import pytest
from graphml_cpu.compiler import KernelRef, compile_kernels
from graphml_cpu.simd import math as math_module

from tests.looped import looped

INF, NAN = math.inf, math.nan
_erf = np.vectorize(math.erf, otypes=[np.float64])


def run(name: str, x: np.ndarray) -> np.ndarray:
    kernel = compile_kernels([KernelRef(name, "cpu_sample_kernels", "make_unary", (name,))])[name]
    out = np.zeros_like(x)
    kernel(kernel.block(x=x.ctypes.data, out=out.ctypes.data, n=len(x)))
    return out


def samples(low: float, high: float) -> np.ndarray:
    """Float32 of every sign and exponent, 256 of each; and more where the functions bend."""
    rng = np.random.default_rng(0)
    step = 1 << 15
    grid = np.arange(0, 1 << 32, step, dtype=np.uint64)
    every = (grid + rng.integers(0, step, len(grid), dtype=np.uint64)).astype(np.uint32).view(np.float32)
    near = np.concatenate([rng.uniform(-110, 110, 60000), rng.normal(size=60000)]).astype(np.float32)
    found = np.concatenate([every[np.isfinite(every)], near])
    return np.ascontiguousarray(found[(found >= low) & (found <= high)])


def stable_sigmoid(x: np.ndarray) -> np.ndarray:
    e = np.exp(-np.abs(x))
    return np.where(x < 0, e, 1) / (1 + e)


# name, float64 reference, range, error in ulp: what the functions' docstrings say
WITHIN = [
    ("exp", np.exp, (-INF, INF), 1.1),
    ("log", np.log, (0, INF), 0.9),
    ("log1p_exp", lambda x: np.log1p(np.exp(-np.abs(x))) + np.maximum(x, 0), (-INF, INF), 2),
    ("tanh", np.tanh, (-INF, INF), 1.4),
    ("sigmoid", stable_sigmoid, (-INF, INF), 2.4),
    ("silu", lambda x: x * stable_sigmoid(x), (-87, INF), 3),
    ("erf", _erf, (-INF, INF), 1.2),
    ("square_root", np.sqrt, (0, INF), 0.5),
    ("round_even", np.round, (-INF, INF), 0),
]


def errors_in_ulp(name: str, x: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Zero where the result is the nearest float32, infinity among these."""
    found, smallest = run(name, x), np.finfo(np.float32).smallest_subnormal
    nearest = wanted.astype(np.float32)
    unit = np.spacing(np.maximum(np.abs(nearest), smallest)).astype(np.float64)
    return np.where(found == nearest, 0, np.abs(found - wanted) / unit)


@pytest.mark.parametrize(("name", "reference", "bounds", "ulp"), WITHIN)
def test_errors_are_as_stated(name, reference, bounds, ulp) -> None:  # type: ignore[no-untyped-def]
    x = samples(*bounds)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        errors = errors_in_ulp(name, x, reference(x.astype(np.float64)))
    assert errors.max() <= ulp, x[errors.argmax()]


@looped(("name", "reference", "bounds", "ulp"), WITHIN)
def test_errors_are_stated_in_the_docstring(name, reference, bounds, ulp) -> None:  # type: ignore[no-untyped-def]
    if ulp > 0.5:
        (stated,) = re.findall(r"within ([\d.]+) ulp", getattr(math_module, name).__doc__)
        assert float(stated) == ulp


def test_silu_of_what_makes_subnormal_numbers() -> None:
    x = samples(-INF, -87)
    with np.errstate(under="ignore"):
        wanted = x * stable_sigmoid(x.astype(np.float64))
    assert np.abs(run("silu", x) - wanted).max() <= 2e-43


GELUS = [
    ("gelu_erf", lambda x: 0.5 * x * (1 + _erf(x / np.sqrt(2))), 1.1e-7),
    ("gelu_tanh", lambda x: x * stable_sigmoid(2 * np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)), 1.2e-7),
    ("gelu_quick", lambda x: x * stable_sigmoid(1.702 * x), 1.2e-7),
]


@pytest.mark.parametrize(("name", "reference", "error"), GELUS)
def test_gelus(name, reference, error) -> None:  # type: ignore[no-untyped-def]
    x = samples(-INF, INF)
    with np.errstate(over="ignore"):
        wanted = reference(x.astype(np.float64))
    assert (np.abs(run(name, x) - wanted) <= error * np.maximum(np.abs(x).astype(np.float64), 1)).all()


LIMITS = [
    ("exp", [-INF, INF, -200, 200, 0], [0, INF, 0, INF, 1]),
    ("log", [0, INF, -1, 1], [-INF, INF, NAN, 0]),
    ("tanh", [-INF, INF, 1e30], [-1, 1, 1]),
    ("sigmoid", [-INF, INF, -200, -88.9], [0, 1, 0, 2.461613e-39]),
    ("silu", [INF, -200], [INF, -0.0]),
    ("erf", [-INF, INF, 1e30, -50], [-1, 1, 1, -1]),
    ("log1p_exp", [-INF, INF, 1e30], [0, INF, 1e30]),
    ("round_even", [0.5, 1.5, 2.5, -0.5, 1e30, INF], [0, 2, 2, -0.0, 1e30, INF]),
]


@looped(("name", "given", "wanted"), LIMITS)
def test_limits_and_nan(name: str, given: list[float], wanted: list[float]) -> None:
    x = np.array([*given, NAN], np.float32)
    np.testing.assert_array_equal(run(name, x), np.array([*wanted, NAN], np.float32))
