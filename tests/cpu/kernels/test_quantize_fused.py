"""Norms and gates straight into packed rows: the same bytes as the plain kernel and then `quantize`."""

from __future__ import annotations

import numpy as np
import pytest
from graphml_cpu.packed import GROUP_BYTES, LAYOUTS, SCALE, packed_bytes

from graphml import settings
from tests.cpu.kernels.running import THREADS, kernel, run
from tests.looped import looped

LENGTHS = [1, 17, 32, 100, 128, 576, 1537]
GATES = [(op, "q8_1") for op in ("swiglu", "geglu", "reglu", "swiglu_oai")] + [("swiglu", "bf16")]
if settings.cpu_level():  # their functions are in tests/cpu/test_simd_math.py
    GATES = GATES[:1]


def rows_of(n: int, rows: int, seed: int = 0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal((rows, n)) * 3).astype(np.float32)


def packed(x: np.ndarray, layout: str = "q8_1") -> np.ndarray:
    rows, n = x.shape
    out = np.full((rows, packed_bytes(n)), 99, np.uint8)
    run(kernel("products.quantize", "make_quantize", layout), 1, x=x, out=out, k=n, rows=rows)
    return out


@looped("n", LENGTHS)
@looped("weighted", [True, False])
@looped("layout", LAYOUTS)
def test_rms_norm_quantize_is_norm_then_quantize(n: int, weighted: bool, layout: str) -> None:
    x, weight = rows_of(n, 3), rows_of(n, 1, 1)[0]
    values = {"x": x, "weight": weight if weighted else 0, "n": n, "eps": 1e-5, "x_stride": n * 4, "rows": 3}
    normed = np.empty_like(x)
    run(kernel("norms.norm", "make_rms_norm"), 1, bias=0, out=normed, out_stride=n * 4, **values)
    for nth in THREADS:
        out = np.full((3, packed_bytes(n)), 99, np.uint8)
        run(kernel("products.quantize_fused", "make_rms_norm_quantize", layout), nth, out=out, **values)
        np.testing.assert_array_equal(out, packed(normed, layout))


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize(("op", "layout"), GATES)
def test_glu_quantize_is_glu_then_quantize(n: int, op: str, layout: str) -> None:
    gate, up = rows_of(n, 3), rows_of(n, 3, 1)
    values = {"gate": gate, "up": up, "n": n, "gate_stride": n * 4, "up_stride": n * 4, "rows": 3}
    product = np.empty_like(gate)
    of_two = {"a": gate, "b": up, "n": n, "a_stride": n * 4, "b_stride": n * 4, "rows": 3}
    run(kernel("elementwise.operations", "make_glu", op), 1, out=product, out_stride=n * 4, **of_two)
    for nth in THREADS:
        out = np.full((3, packed_bytes(n)), 99, np.uint8)
        run(kernel("products.quantize_fused", "make_glu_quantize", op, layout), nth, out=out, **values)
        np.testing.assert_array_equal(out, packed(product, layout))


def test_a_row_that_is_not_finite_stays_so() -> None:
    x = rows_of(256, 2)
    x[1, 200] = np.nan
    values = {"x": x, "weight": 0, "n": 256, "eps": 1e-5, "x_stride": 1024, "rows": 2}
    out = np.zeros((2, packed_bytes(256)), np.uint8)
    run(kernel("products.quantize_fused", "make_rms_norm_quantize", "q8_1"), 2, out=out, **values)
    scales = out.reshape(2, 2, GROUP_BYTES)[:, :, SCALE : SCALE + 16].copy().view(np.float32)
    assert np.isfinite(scales[0]).all()
    assert np.isnan(scales[1]).all()
