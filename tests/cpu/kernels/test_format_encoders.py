"""Compiled encoders of weight formats: ggml's bytes, whatever the threads, rows and neighbours.

A new encoder is tested by these without a change here.
"""

from __future__ import annotations

import json
import subprocess
import sys

import graphml_quant
import numpy as np
import pytest
from graphml_cpu.backend import BACKEND
from graphml_cpu.kernels.encoders import ELEMENTS, halves, make_encode, names
from graphml_quant import Format

import graphml
from graphml.errors import BackendError
from tests.looped import looped
from tests.quant import ggml_record

GGML = json.loads(ggml_record.FILES_RECORD.read_text())["types"]
BLOCKS = [graphml_quant.by_name(name) for name in names()]
ENCODED = [*BLOCKS, *map(graphml_quant.by_name, ELEMENTS)]
SEARCHED = [format for format in BLOCKS if format.importance != "unused"]
VALUES, IMPORTANCE = ggml_record.file_values(), ggml_record.file_importance()


def encode(format: Format, values: np.ndarray, weighted: bool = False, threads: int | None = 1) -> np.ndarray:
    importance = IMPORTANCE[: values.shape[-1]] if weighted or format.importance == "needed" else None
    return graphml.quantize(values, format.name, importance, threads=threads)


def rmse(format: Format, values: np.ndarray, blocks: np.ndarray, weights: np.ndarray | float = 1.0) -> float:
    decoded = graphml.dequantize(blocks, format.name, values.shape).astype(np.float64)
    return float(np.sqrt((weights * (decoded - values) ** 2).mean()))


@looped("format", ENCODED, ids=lambda format: format.name)
def test_the_bytes_are_ggmls(format: Format) -> None:
    for tag, wanted in GGML[format.name].items():
        blocks = ggml_record.placed(format, VALUES, encode(format, VALUES, tag == "weighted"))
        assert ggml_record.digest(blocks) == wanted, tag


@looped("format", ENCODED, ids=lambda format: format.name)
def test_bytes_do_not_depend_on_threads_and_rows(format: Format) -> None:
    whole = encode(format, VALUES, weighted=True)
    for threads in (2, 3, 7):
        np.testing.assert_array_equal(encode(format, VALUES, True, threads), whole)
    for rows in (slice(0, 1), slice(9, 12), slice(3, 40)):
        np.testing.assert_array_equal(encode(format, VALUES[rows], True), whole[rows])
    columns = max(format.block_elements, 16)
    narrow = encode(format, VALUES[:, :columns])
    np.testing.assert_array_equal(narrow[5], encode(format, VALUES[5, :columns]))


@looped("format", BLOCKS, ids=lambda format: format.name)
def test_nothing_but_the_rows_is_read(format: Format) -> None:
    values = np.full((7, 512), np.nan, np.float32)
    values[2:5] = VALUES[:3, :512]
    np.testing.assert_array_equal(encode(format, values[2:5], True), encode(format, VALUES[:3, :512], True))


@looped("format", ENCODED, ids=lambda format: format.name)
def test_zeros_stay_zeros(format: Format) -> None:
    values = VALUES[:4, :512].copy()
    values[1], values[2, 256:] = 0, 0
    for weighted in (False, True):
        decoded = graphml.dequantize(encode(format, values, weighted), format.name, values.shape)
        # Blocks of signs have no zeros, and some codebooks none either: their scale is 0.
        assert not decoded[1].any()
        assert not decoded[2, 256:].any()


@looped("format", ENCODED, ids=lambda format: format.name)
def test_errors_are_as_small_as_the_bits_allow(format: Format) -> None:
    values = VALUES[:8]
    share = rmse(format, values, encode(format, values)) / float(np.sqrt((values**2).mean()))
    kept_bits = {"f16": 12, "bf16": 9}.get(format.name, format.bits_per_element)  # of fractions
    assert share < 3.5 * 2.0**-kept_bits, share


@looped("format", SEARCHED, ids=lambda format: format.name)
def test_importance_lowers_the_weighted_error(format: Format) -> None:
    values = VALUES[:16]
    plain = graphml.quantize(values, format.name, np.ones(1024) if format.importance == "needed" else None)
    weighted = encode(format, values, weighted=True)
    assert rmse(format, values, weighted, IMPORTANCE) < rmse(format, values, plain, IMPORTANCE)


@looped("format", SEARCHED, ids=lambda format: format.name)
def test_importance_counts_by_its_ratios(format: Format) -> None:
    wanted = graphml.quantize(VALUES[:8], format.name, IMPORTANCE)
    for factor in (4.0, 2.0**90, 2.0**-90):
        found = graphml.quantize(VALUES[:8], format.name, IMPORTANCE * np.float64(factor))
        np.testing.assert_array_equal(found, wanted)


@looped("format", BLOCKS, ids=lambda format: format.name)
def test_small_numbers_of_any_size_are_encoded(format: Format) -> None:
    for exponent in (-20, -40, -60, -100, -126, -140):
        values = np.ldexp(VALUES[:4, :512], exponent)
        for weighted in (False, True):
            decoded = graphml.dequantize(encode(format, values, weighted), format.name, values.shape)
            assert np.isfinite(decoded).all()
            assert abs(decoded).max() <= 2 * abs(values).max(), exponent


@looped("format", BLOCKS, ids=lambda format: format.name)
def test_scales_beyond_half_precision_are_refused(format: Format) -> None:
    values = VALUES[:4, :512].copy()
    values[3, 300:316] = 1e30
    if halves(format.name) == (-1, -1):
        assert np.isfinite(graphml.dequantize(encode(format, values), format.name, values.shape)).all()
        return
    with pytest.raises(graphml.UsageError, match=r"float16; the value at \(3, 300\) is 1.0+1?5?\d*e\+30"):
        encode(format, values)


@looped("format", [f for f in BLOCKS if halves(f.name) != (-1, -1)], ids=lambda format: format.name)
def test_a_scale_that_is_no_half_is_refused_wherever_it_is_kept(format: Format) -> None:
    values = VALUES[:4, :512].copy()
    assert encode(format, values).size
    values[2, 256:] = np.ldexp(values[2, 256:], 28)
    with pytest.raises(graphml.UsageError, match=r"within float16; the value at \(2, \d+\)"):
        encode(format, values)


def test_values_without_importance_keep_their_signs_in_iq3_s() -> None:
    values, importance = VALUES[:8, :256].copy(), np.ones(256)
    values[:, 32:64:2], importance[33:64:2] = 0, 0
    blocks = graphml.quantize(values, "IQ3_S", importance)
    np.testing.assert_array_equal(blocks[:, 74:106], np.packbits(values < 0, axis=1, bitorder="little"))


def test_a_group_of_zeros_moves_no_vectors_of_iq3_s() -> None:
    format, values = graphml_quant.by_name("iq3_s"), VALUES[:8, :256].copy()
    whole = encode(format, values)
    values[:, 64:96] = 0
    indices = slice(2, 66)
    zeroed = encode(format, values)
    of_group = np.arange(64) // 8 == 2
    np.testing.assert_array_equal(zeroed[:, indices][:, ~of_group], whole[:, indices][:, ~of_group])
    assert not zeroed[:, indices][:, of_group].any()


@looped("format", [f for f in BLOCKS if f.encode and f.name != "iq4_nl"], ids=lambda format: format.name)
def test_encoders_in_numpy_write_the_same(format: Format) -> None:
    """Those of caches and graphs; IQ4_NL's in files searches more."""
    values = ggml_record.sample_values(format)
    np.testing.assert_array_equal(encode(format, values), graphml_quant.quantize(format, values))


def test_formats_without_an_encoder_are_named() -> None:
    assert BACKEND.encoder("q9_z") is None
    with pytest.raises(BackendError, match=r"'q9_z'.*q4_k"):
        make_encode("q9_z", False)
    assert set(names()) <= set(graphml_quant.formats())


_ON_ARM = """
from graphml_cpu import target
target.compile_for("neon")
from graphml_cpu.compiler import KernelRef, assembly
from graphml_cpu.kernels.encoders import names
for name in names():
    ref = KernelRef(name, "graphml_cpu.kernels.encoders.blocks", "make_encode_blocks", (name, True))
    assert " fmla" not in (text := assembly(ref)), name
    assert "fmul\\t" in text or "fdiv\\t" in text, name
"""


def test_they_compile_for_arm_without_fused_sums() -> None:
    """Sums that are rounded once would be others than ggml's."""
    done = subprocess.run([sys.executable, "-c", _ON_ARM], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
