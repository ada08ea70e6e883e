"""Products with weights and the packing of activations, against NumPy."""

import ctypes
import functools
import math
import mmap
import sys
from typing import Any

import numpy as np
import pytest
from graphml_cpu import packed, target
from graphml_cpu.compiler import KernelRef, LoadedKernel, compile_kernels
from graphml_cpu.kernels.formats import has_reader, names
from graphml_cpu.layouts import PANEL_ELEMENTS
from graphml_cpu.lowering.linear import product_kernel
from graphml_quant import by_name, dequantize, quantize
from kept_listings import listing

from graphml import settings
from tests.cpu.weights import ordinary_weights
from tests.looped import looped
from tests.quant.ggml_record import sample_blocks

# What differs between the levels is in the moves of these.
FEW = ("iq2_xs", "iq4_xs", "nvfp4", "q2_k", "q4_0", "q6_k", "q8_0", "tq1_0")
if settings.cpu_level() == "plain":  # for processors that nobody knows: one of each kind of move
    FEW = ("iq4_xs", "q2_k", "q4_0")
INTEGER = tuple(
    name for name in names() if has_reader(name) and (settings.cpu_level() is None or name in FEW)
)
# Where the halves of a block are that must be ordinary numbers; nowhere: the scale has no bytes of its own.
SCALES_AT = {
    "iq1_m": (),
    "iq1_s": (0,),
    "iq2_s": (0,),
    "iq2_xs": (0,),
    "iq2_xxs": (0,),
    "iq3_s": (0,),
    "iq3_xxs": (0,),
    "iq4_nl": (0,),
    "iq4_xs": (0,),
    "mxfp4": (),
    "nvfp4": (),
    "q1_0": (0,),
    "q2_0": (0,),
    "q2_k": (80, 82),
    "q3_k": (108,),
    "q4_0": (0,),
    "q4_1": (0, 2),
    "q4_k": (0, 2),
    "q5_0": (0,),
    "q5_1": (0, 2),
    "q5_k": (0, 2),
    "q6_k": (208,),
    "q8_0": (0,),
    "tq1_0": (52,),
    "tq2_0": (64,),
}
PAIRS = [packed.BF16_PAIRS] if target.current().has_bf16 else []  # used nowhere else
# At other levels half precision is multiplied in tests/cpu/test_mul_mat_id.py.
FLOATS = ("f32", "f16", "bf16", *PAIRS) if settings.cpu_level() is None else ("f32",)


def kernel_ref(name: str, kind: str) -> KernelRef:
    return product_kernel(kind, one_row=name == "mul_mat_vec")


def quantize_kernel(layout: str) -> LoadedKernel:
    ref = KernelRef(f"quantize-{layout}", "graphml_cpu.kernels.products.quantize", "make_quantize", (layout,))
    return compile_kernels([ref])[ref.name]


def guarded(content: np.ndarray) -> np.ndarray:
    """A copy that ends where forbidden memory begins: reading or writing past it is a crash."""
    data = np.ascontiguousarray(content)
    if sys.platform != "linux":
        return data.copy()
    page = mmap.PAGESIZE
    room = -(-data.nbytes // page) * page
    area = mmap.mmap(-1, room + page)
    base = np.frombuffer(area, np.uint8).ctypes.data
    assert _protect()(base + room, page, 0) == 0
    found = np.frombuffer(area, data.dtype, data.size, room - data.nbytes).reshape(data.shape)
    found[...] = data
    return found


@functools.cache
def _protect() -> Any:
    protect = ctypes.CDLL(None).mprotect
    protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return protect


_last: dict[str, np.ndarray] = {}  # of what was multiplied last, itself and a guarded copy


def guarded_once(weights: np.ndarray) -> np.ndarray:
    """As `guarded`; the copy is used again while the same weights are asked for and nobody changed either."""
    if _last.get("weights") is not weights or not np.array_equal(_last["copy"], weights):
        _last.update(weights=weights, copy=guarded(weights))
    return _last["copy"]


@functools.lru_cache(maxsize=8)
def _scratch(size: int, ith: int) -> np.ndarray:
    """A thread's guarded memory, of any content."""
    return guarded(np.zeros(-(-size // 64) * 64, np.uint8))


def make_weights(kind: str, n: int, k: int, rng: np.random.Generator) -> Any:
    """[n, bytes of a row]; of formats every bit pattern of the values, tame scales."""
    if kind in FLOATS:
        values = rng.normal(size=(n, k)).astype(np.float32)
        if kind in ("bf16", packed.BF16_PAIRS):
            return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
        return values.astype(np.float16 if kind == "f16" else np.float32).view(np.uint8)
    return ordinary_weights(by_name(kind), n, k, int(rng.integers(1000)))


_decoded: dict[str, Any] = {}  # what was decoded last


def decoded(kind: str, weights: np.ndarray, k: int) -> Any:
    if _decoded.get("kind") != kind or not np.array_equal(_decoded["weights"], weights):
        format = by_name("bf16" if kind == packed.BF16_PAIRS else kind)
        numbers = np.asarray(format.decode(weights.reshape(-1, format.block_bytes)), np.float64)
        _decoded.update(kind=kind, weights=weights.copy(), numbers=numbers)
    return _decoded["numbers"].reshape(-1, k)


def pack(x: np.ndarray, layout: str = "q8_1") -> np.ndarray:
    rows, k = x.shape
    out = np.full((rows, packed.packed_bytes(k)), 0xAA, np.uint8)
    kernel, count = quantize_kernel(layout), np.array([rows])
    block = kernel.block(x=x.ctypes.data, out=out.ctypes.data, k=k, rows=count.ctypes.data)
    for ith in range(2):
        kernel(block, ith, 2)
    return out


def unpack(rows: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """(q [rows, blocks, 32], scale [rows, blocks], the sums by name) of packed rows, padding included."""
    groups = rows.reshape(len(rows), -1, packed.GROUP_BYTES)
    low = groups[:, :, :64].view(np.int8).reshape(len(rows), -1, 16)
    high = groups[:, :, 64:128].view(np.int8).reshape(len(rows), -1, 16)

    def numbers(at: int) -> Any:
        return groups[:, :, at : at + 16].copy().view(np.float32).reshape(len(rows), -1)

    sums = {name: numbers(getattr(packed, name)) for name in ("LOW_SUM", "HIGH_SUM", "SUM")}
    seeds = groups[:, :, packed.SEEDS : packed.SCALE].copy().view(np.int32).reshape(len(rows), -1, 4)
    return np.concatenate([low, high], -1), numbers(packed.SCALE), {**sums, "SEEDS": seeds}


# Up to how many rows of activations no panels are made here; programs choose it by their costs.
BY_ROWS = 24


def multiply(
    kernel: LoadedKernel,
    kind: str,
    weights: np.ndarray,
    x: np.ndarray,
    threads: int = 1,
    residual: np.ndarray | None = None,
    bias: np.ndarray | None = None,
    in_place: bool = False,
    few_rows: int = BY_ROWS,
) -> np.ndarray:
    """y [rows, n]; checks that nothing is written outside of y and of the scratch memory it asked for."""
    (rows, k), n = x.shape, len(weights)
    given = guarded(pack(x) if kind in INTEGER else pack(x, "bf16") if kind == packed.BF16_PAIRS else x)
    stored = guarded_once(weights)
    stride = n + 3  # rows of y further apart than they are long
    y = np.full((rows, stride), 7.0, np.float32)
    if residual is not None:
        wide = np.zeros((rows, stride), np.float32)
        wide[:, :n] = residual
        residual = wide
        if in_place:
            y[:, :n] = wide[:, :n]
    size = packed.scratch_bytes(kind, k)
    scratch = [_scratch(size, ith) for ith in range(threads)]
    for one in scratch:
        one[...] = 0
    count = np.array([rows])
    for ith in range(threads):
        block = kernel.block(
            w=stored.ctypes.data,
            x=given.ctypes.data,
            y=y.ctypes.data,
            residual=0 if residual is None else (y if in_place else residual).ctypes.data,
            bias=0 if bias is None else bias.ctypes.data,
            n=n,
            k=k,
            x_stride=given.strides[0],
            y_stride=y.strides[0],
            scratch=scratch[ith].ctypes.data,
            few_rows=few_rows,
            rows=count.ctypes.data,
        )
        kernel(block, ith, threads)
    assert (y[:, n:] == 7).all(), "wrote past the end of a row"
    return y[:, :n]


def expected(kind: str, weights: np.ndarray, x: np.ndarray) -> np.ndarray:
    k = x.shape[1]
    values = x.astype(np.float64)
    if kind in INTEGER:
        q, scale, _ = unpack(pack(x), k)
        values = (q * scale[..., None].astype(np.float64)).reshape(len(x), -1)[:, :k]
    if kind == packed.BF16_PAIRS:
        bf16 = by_name("bf16")
        values = dequantize(bf16, quantize(bf16, x), x.shape).astype(np.float64)
    return np.asarray(values @ decoded(kind, weights, k).T)


def tolerance(kind: str, weights: np.ndarray, x: np.ndarray) -> np.ndarray:
    """What rounding may cost: a few units in the last place of the sum of the terms' magnitudes."""
    terms = np.abs(x).astype(np.float64) @ np.abs(decoded(kind, weights, x.shape[1])).T
    return np.asarray(2e-6 * (terms + 1))


def relative_error(differences: list[np.ndarray], results: list[np.ndarray]) -> float:
    """Sum of the differences' magnitudes over that of the exact results'."""
    sums = [sum(float(np.abs(one).sum()) for one in several) for several in (differences, results)]
    return sums[0] / max(sums[1], 1e-10)


def test_the_code_is_of_its_level() -> None:
    """Before the others, which use the code that is kept when it is listed."""
    level = target.current()
    # At the best level those of tests/cpu/test_assembly.py.
    for kind in ("q4_0", "f16" if settings.cpu_level() is None else "f32", *PAIRS):
        few = dict(kernel_ref("mul_mat_vec", kind).calls)["few"]
        assert few is not None
        text = listing(few)
        assert ("zmm" in text) == (level.name == "avx512")
        assert ("ymm" in text) == (level.name != "plain")
        assert ("vpdpbusd" in text) == (level.has_vnni and kind == "q4_0")
        assert ("vdpbf16ps" in text) == (level.has_bf16 and kind == packed.BF16_PAIRS)


@looped("k", [32, 96, 128, 576])
def test_packing(k: int) -> None:
    rng = np.random.default_rng(k)
    x = (rng.normal(size=(5, k)) * 10.0 ** rng.integers(-20, 20, (5, 1))).astype(np.float32)
    x[1, :32] = 0
    q, scale, sums = unpack(pack(guarded(x)), k)
    blocks = x.reshape(5, -1, 32)
    wanted = (np.abs(blocks).max(-1) / np.float32(127)).astype(np.float32)
    count = blocks.shape[1]
    np.testing.assert_array_equal(scale[:, :count], wanted)
    assert (np.abs(q[:, :count] * scale[:, :count, None] - blocks) <= 0.5001 * wanted[..., None]).all()
    assert (q[:, count:] == 0).all()
    assert (scale[:, count:] == 0).all()
    low, high = q[..., :16].sum(-1, dtype=np.int32), q[..., 16:].sum(-1, dtype=np.int32)
    seeds = np.stack([low, high, low + high, -(low + high)], -1) * -128
    np.testing.assert_array_equal(sums["SEEDS"], seeds)
    for name, total in (("LOW_SUM", low), ("HIGH_SUM", high), ("SUM", low + high)):
        np.testing.assert_array_equal(sums[name], scale * total.astype(np.float32))


@looped("k", [1, 77, 128, 577])
def test_packing_to_bfloat16(k: int) -> None:
    rng = np.random.default_rng(k)
    x = (rng.normal(size=(5, k)) * 10.0 ** rng.integers(-42, 38, (5, 1))).astype(np.float32)
    x[1, k // 2] = math.nan
    x[2, k // 3] = math.inf
    found = pack(guarded(x), "bf16").view(np.uint16)
    np.testing.assert_array_equal(found[:, :k], quantize(by_name("bf16"), x).view(np.uint16).reshape(5, k))
    assert (found[:, k:] == 0).all()


# n, rows of activations, residual, bias
SHAPES = [
    (1, 1, False, False),
    (37, 1, True, False),
    (33, 2, True, True),
    (17, 3, False, False),
    (16, 4, True, False),
    (70, 5, True, True),
    (33, 6, False, False),
    (21, 7, False, True),
    (21, 18, True, False),
    (49, 8, False, True),
    (16, 9, False, False),
    (35, 33, True, True),
]
FLOAT_WIDTHS = (1, 77, 128, PANEL_ELEMENTS + 13)


def widths(kind: str) -> tuple[int, ...]:
    """Row lengths that are whole blocks: less than a unit, units, units and a rest."""
    if kind in FLOATS:
        return FLOAT_WIDTHS if kind != packed.BF16_PAIRS else (*FLOAT_WIDTHS, 2 * PANEL_ELEMENTS + 13)
    block = by_name(kind).block_elements
    return tuple(sorted({block, 3 * block, *(k for k in (256, 576, 2048) if k % block == 0)}))


# The two kernels share their parts: the formats are told apart by the larger one.
KERNELS = [("mul_mat", kind) for kind in INTEGER + FLOATS]
if settings.cpu_level() is None:
    KERNELS += [("mul_mat_vec", "q4_0"), ("mul_mat_vec", "f32")]


@pytest.mark.parametrize(("factory", "kind"), KERNELS)
def test_products(factory: str, kind: str) -> None:
    rng = np.random.default_rng(len(kind))
    kernel = compile_kernels([kernel_ref(factory, kind)])[f"{factory}-{kind}"]
    for k in widths(kind):
        differences, results = [], []
        for n, rows, with_residual, with_bias in SHAPES:
            weights, x = make_weights(kind, n, k, rng), rng.normal(size=(rows, k)).astype(np.float32)
            residual = rng.normal(size=(rows, n)).astype(np.float32) if with_residual else None
            bias = rng.normal(size=n).astype(np.float32) if with_bias else None
            wanted = expected(kind, weights, x)
            wanted = wanted + (0 if bias is None else bias) + (0 if residual is None else residual)
            alone = multiply(kernel, kind, weights, x, 1, residual, bias)
            assert (np.abs(alone - wanted) <= tolerance(kind, weights, x)).all(), (k, n, rows)
            differences.append(alone - wanted)
            results.append(wanted)
            for threads in (2, 3):
                shared = multiply(kernel, kind, weights, x, threads, residual, bias)
                np.testing.assert_array_equal(shared, alone, err_msg=str((k, n, rows, threads)))
        assert relative_error(differences, results) <= 1e-5, k


@pytest.mark.parametrize("rows", [9, BY_ROWS + 1])
@pytest.mark.parametrize("kind", ["q4_0", "f32"])
def test_the_residual_may_be_the_result(kind: str, rows: int) -> None:
    rng = np.random.default_rng(1)
    n, k = 40, PANEL_ELEMENTS + 256
    kernel = compile_kernels([kernel_ref("mul_mat", kind)])[f"mul_mat-{kind}"]
    weights, x = make_weights(kind, n, k, rng), rng.normal(size=(rows, k)).astype(np.float32)
    residual = rng.normal(size=(rows, n)).astype(np.float32)
    found = multiply(kernel, kind, weights, x, 2, residual, in_place=True)
    assert (np.abs(found - expected(kind, weights, x) - residual) <= tolerance(kind, weights, x)).all()


@looped("rows", [1, 9, BY_ROWS + 1])
@pytest.mark.parametrize("kind", [*INTEGER, *FLOATS[::3]])
@looped("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_stays_so_and_stays_in_its_row(kind: str, rows: int, bad: float) -> None:
    rng = np.random.default_rng(2)
    kernel = compile_kernels([kernel_ref("mul_mat", kind)])[f"mul_mat-{kind}"]
    k = widths(kind)[1]
    weights, x = make_weights(kind, 20, k, rng), rng.normal(size=(rows, k)).astype(np.float32)
    x[0, k // 2 + 3] = bad
    found = multiply(kernel, kind, weights, x)
    assert not np.isfinite(found[0]).any()
    assert np.isfinite(found[1:]).all()


@pytest.mark.parametrize("kind", INTEGER)
def test_hostile_weights_stay_in_their_column(kind: str) -> None:
    """Rows of random bits, where scales are infinite and not numbers, between rows of ordinary weights."""
    rng = np.random.default_rng(3)
    kernel = compile_kernels([kernel_ref("mul_mat", kind)])[f"mul_mat-{kind}"]
    k = widths(kind)[1]
    weights = make_weights(kind, 20, k, rng)
    hostile = [0, 7, 8, 19]
    blocks = sample_blocks(by_name(kind))
    blocks = blocks[~np.isfinite(by_name(kind).decode(blocks)).all(-1)]
    if len(blocks) == 0:
        pytest.skip(f"every block of {kind} decodes to finite numbers")
    weights[hostile] = np.resize(blocks, (4, weights.shape[1]))
    ordinary = np.delete(np.arange(20), hostile)
    for rows in (1, 2, 5, BY_ROWS + 1):
        x = rng.normal(size=(rows, k)).astype(np.float32)
        found, wanted = multiply(kernel, kind, weights, x)[:, ordinary], expected(kind, weights[ordinary], x)
        assert (np.abs(found - wanted) <= tolerance(kind, weights[ordinary], x)).all(), rows
        assert not np.isfinite(multiply(kernel, kind, weights, x)[:, hostile]).any()


@pytest.mark.parametrize("kind", [kind for kind in INTEGER if SCALES_AT[kind]])
@looped("byte", [0xFF, 0x80, 0x7F, 0x00])
def test_extreme_values_are_exact(kind: str, byte: int) -> None:
    """Weights and activations at their largest, where a 16-bit sum in between would overflow."""
    kernel = compile_kernels([kernel_ref("mul_mat", kind)])[f"mul_mat-{kind}"]
    k = widths(kind)[-1]
    ordinary = make_weights(kind, 16, k, np.random.default_rng(0))
    weights = np.full_like(ordinary, byte).reshape(-1, by_name(kind).block_bytes)
    for at in SCALES_AT[kind]:
        weights[:, at : at + 2] = np.array([1], np.float16).view(np.uint8)
    weights = weights.reshape(16, -1)
    for rows in (1, 12):
        for sign in (1, -1):
            x = np.full((rows, k), sign, np.float32)
            found = multiply(kernel, kind, weights, x)
            np.testing.assert_allclose(found, expected(kind, weights, x), rtol=1e-6)
