"""Every format that the package finds, against the gguf package and against ggml's record.

A new format file is tested by these without a change here; ggml's record gains an entry by running
ggml_record.py.
"""

import json
import warnings

import ggml_record
import gguf
import hypothesis.extra.numpy as hypothesis_numpy
import numpy as np
import pytest
from graphml_quant import Format, dequantize, formats, quantize
from hypothesis import given, settings
from hypothesis import strategies as st
from quant_checks import ENCODING, FLOATS, FORMATS, each, same_bits

from tests.looped import looped

GGML = json.loads(ggml_record.RECORD.read_text())["types"]

# The limits of ggml's tests/test-quantize-fns.cpp, on its data.
ROUND_TRIP_LIMIT = 0.002
ROUND_TRIP_LIMITS = {
    "q1_0": 0.025,
    **dict.fromkeys(("tq1_0", "tq2_0", "q2_0"), 0.01),
    **dict.fromkeys(("q2_k", "iq2_s"), 0.0075),
    **dict.fromkeys(("q3_k", "iq3_s"), 0.004),
    "iq3_xxs": 0.005,
    "nvfp4": 0.003,
    # ggml does not try these; they have fewer bits than the nearest it does try
    **dict.fromkeys(("iq1_s", "iq1_m", "iq2_xxs", "iq2_xs"), 0.01),
}


def gguf_type(format: Format) -> gguf.GGMLQuantizationType | None:
    return gguf.GGMLQuantizationType.__members__.get(format.name.upper())


def gguf_dequantize(format: Format, blocks: np.ndarray) -> np.ndarray | None:
    """Decode with the gguf package; None where it has no decoder."""
    try:
        with warnings.catch_warnings(action="ignore"):
            return gguf.dequantize(blocks, gguf_type(format)) if gguf_type(format) is not None else None
    except NotImplementedError:
        return None


def gguf_quantize(format: Format, values: np.ndarray) -> np.ndarray | None:
    """Encode with the gguf package; None where it has no encoder."""
    try:
        with warnings.catch_warnings(action="ignore"):
            encoded = gguf.quantize(values, gguf_type(format)) if gguf_type(format) is not None else None
    except NotImplementedError:
        return None
    return None if encoded is None else np.ascontiguousarray(encoded).view(np.uint8)


GGUF_DECODING = [f for f in FORMATS if gguf_dequantize(f, np.zeros((1, f.block_bytes), np.uint8)) is not None]
GGUF_ENCODING = [f for f in ENCODING if gguf_quantize(f, np.zeros((1, 256), np.float32)) is not None]
GGML_FORMATS = [f for f in FORMATS if f.name in GGML]
GGML_DECODING = [f for f in GGML_FORMATS if "decoded" in GGML[f.name]]
GGML_ENCODING = [f for f in GGML_FORMATS if f.encode and "encoded" in GGML[f.name]]


@each(GGML_FORMATS)
def test_the_declaration_is_ggmls(format: Format) -> None:
    known = GGML[format.name]
    assert format.ggml_type == known["ggml_type"]
    assert (format.block_elements, format.block_bytes) == (known["block_elements"], known["block_bytes"])
    # ggml rounds activations to half precision for such weights; here they stay float32
    kept = ("f32", "f16")
    assert format.activation == (None if format.name in kept else known["vec_dot_type"])
    assert format.bits_per_element == 8 * format.block_bytes / format.block_elements


@each(FORMATS)
def test_every_format_has_an_oracle(format: Format) -> None:
    assert format in GGUF_DECODING + GGML_DECODING or format.name in SCALAR_DECODERS, (
        f"nothing checks {format.name}'s decoder: run ggml_record.py, or write a scalar one here"
    )
    if format.encode and format.name in GGML:
        assert format in GGUF_ENCODING + GGML_ENCODING, "run ggml_record.py to record ggml's encoder"


def test_nothing_of_ggml_is_missing() -> None:
    assert set(formats()) >= set(GGML)
    assert len(GGML) == 30
    # q8_1 is never in a file, and the gguf package has its size wrong (40 bytes; block_q8_1 is 36)
    integers_and_doubles = {"I8", "I16", "I32", "I64", "F64"}
    for type_, size in gguf.GGML_QUANT_SIZES.items():
        if type_.name not in integers_and_doubles | {"Q8_1"}:
            found = formats()[type_.name.lower()]
            assert (found.ggml_type, found.block_elements, found.block_bytes) == (int(type_), *size)


@each(FORMATS)
def test_activation_formats_can_encode_and_fit(format: Format) -> None:
    if format.activation is not None:
        activation = formats()[format.activation]
        assert activation.encode is not None
        assert format.block_elements % activation.block_elements == 0


@each(GGUF_DECODING)
def test_decoding_is_the_gguf_packages(format: Format) -> None:
    blocks = ggml_record.sample_blocks(format)
    expected = gguf_dequantize(format, blocks)
    assert same_bits(dequantize(format, blocks, expected.shape), expected)


@each(GGML_DECODING)
def test_decoding_is_ggmls(format: Format) -> None:
    blocks = ggml_record.sample_blocks(format)
    values = dequantize(format, blocks, (len(blocks), format.block_elements))
    assert ggml_record.digest(values) == GGML[format.name]["decoded"]


@pytest.mark.parametrize("name", ["q8_1", "q8_k", "q1_0", "q2_0"])  # SCALAR_DECODERS, below
def test_decoding_without_a_gguf_decoder(name: str) -> None:
    blocks = ggml_record.sample_blocks(formats()[name])
    with np.errstate(all="ignore"):
        expected = np.array([SCALAR_DECODERS[name](block) for block in blocks], np.float32)
    assert same_bits(dequantize(formats()[name], blocks, expected.shape), expected)


def times(scale: np.floating, numbers: list[int]) -> np.ndarray:
    return np.float32(scale) * np.array(numbers, np.float32)


def half_at(block: np.ndarray, place: int) -> np.float32:
    return np.float32(np.frombuffer(block[place : place + 2].tobytes(), "<f2")[0])


def scalar_q8_1(block: np.ndarray) -> np.ndarray:
    return times(half_at(block, 0), [byte - 256 * (byte > 127) for byte in block[4:36].tolist()])


def scalar_q8_k(block: np.ndarray) -> np.ndarray:
    scale = np.frombuffer(block[:4].tobytes(), "<f4")[0]
    return times(scale, [byte - 256 * (byte > 127) for byte in block[4:260].tolist()])


def scalar_q1_0(block: np.ndarray) -> list[np.float32]:
    scale, bytes_ = half_at(block, 0), block.tolist()
    return [scale if bytes_[2 + place // 8] >> place % 8 & 1 else -scale for place in range(128)]


def scalar_q2_0(block: np.ndarray) -> np.ndarray:
    scale, bytes_ = half_at(block, 0), block.tolist()
    return times(scale, [(bytes_[2 + place // 4] >> place % 4 * 2 & 3) - 1 for place in range(64)])


SCALAR_DECODERS = {"q8_1": scalar_q8_1, "q8_k": scalar_q8_k, "q1_0": scalar_q1_0, "q2_0": scalar_q2_0}


@each(GGUF_ENCODING)
def test_encoding_is_the_gguf_packages(format: Format) -> None:
    values = ggml_record.sample_values(format)
    assert np.array_equal(quantize(format, values), gguf_quantize(format, values))


@each(GGML_ENCODING)
def test_encoding_is_ggmls(format: Format) -> None:
    encoded = ggml_record.defined(format, quantize(format, ggml_record.sample_values(format)))
    assert ggml_record.digest(encoded) == GGML[format.name]["encoded"]


# Up to 1e25 and zero or from 1e-25: beyond, the gguf package casts infinities, whose result C leaves open.
MAGNITUDES = st.floats(2.0**-83, 2.0**83, width=32)
ELEMENTS = st.one_of(st.just(0.0), st.floats(-8, 8, width=32).map(lambda x: round(x * 16) / 16), MAGNITUDES)


@each(GGUF_ENCODING)
@settings(max_examples=40, deadline=None, derandomize=True)
@given(data=st.data())
def test_encoding_is_the_gguf_packages_on_chosen_values(format: Format, data: st.DataObject) -> None:
    shape = (2, max(format.block_elements, 4))
    values = data.draw(hypothesis_numpy.arrays(np.float32, shape, elements=ELEMENTS, fill=ELEMENTS))
    values[:, ::2] *= -1
    ours, theirs = (zeros_alike(format, make(format, values)) for make in (quantize, gguf_quantize))
    assert np.array_equal(ours, theirs)


def zeros_alike(format: Format, encoded: np.ndarray) -> np.ndarray:
    """Encoded blocks whose scales and minima of -0 are 0: the gguf package has other signs than ggml."""
    blocks = encoded.reshape(-1, format.block_bytes).copy()
    if format.name in ("q4_0", "q4_1", "q5_0", "q5_1"):
        halves = blocks[:, : 4 if format.name.endswith("1") else 2].view("<u2")
        halves[halves == 0x8000] = 0
    return blocks


@pytest.mark.parametrize("name", sorted(FLOATS))
def test_float_formats_keep_what_is_not_finite(name: str) -> None:
    values = np.array([np.inf, -np.inf, np.nan, -0.0, 1e-40, 3e38, -1e6], np.float32)
    values.view(np.uint32)[2] = 0x7F800001  # a NaN whose upper half alone would be an infinity
    encoded = quantize(formats()[name], values)
    again = dequantize(formats()[name], encoded, values.shape)
    assert np.array_equal(encoded, gguf_quantize(formats()[name], values))
    assert np.isnan(again[2])
    assert again[0] == np.inf
    assert again[1] == -np.inf
    assert np.signbit(again[3])


@each(ENCODING)
def test_round_trip_stays_within_ggmls_limits(format: Format) -> None:
    count = 32 * 128
    values = (0.1 + 2 * np.cos(np.arange(count))).astype(np.float32)
    again = dequantize(format, quantize(format, values), (count,))
    error = np.sqrt(np.sum((values - again).astype(np.float64) ** 2)) / count
    assert error < ROUND_TRIP_LIMITS.get(format.name, ROUND_TRIP_LIMIT)


# ggml-quants.c starts its search for the largest magnitude at 0, and takes the first of equal minima.
@looped("name", ["q4_0", "q5_0", "q4_1", "q5_1"])
def test_the_signs_of_zeros_are_ggmls(name: str) -> None:
    values = np.zeros((2, 32), np.float32)
    values[0], values[1, ::2] = -0.0, -0.0
    scales = quantize(formats()[name], values)[:, :4].view("<f2")
    wanted = [[0.0, -0.0], [0.0, -0.0]] if name.endswith("1") else [[-0.0], [-0.0]]
    assert np.array_equal(np.signbit(scales[:, : len(wanted[0])]), np.signbit(wanted))


@each(ENCODING)
def test_tiny_values_round_trip_to_tiny_values(format: Format) -> None:
    values = np.full((1, max(format.block_elements, 2)), 1e-42, np.float32)
    values[0, 0] = -1e-42
    again = dequantize(format, quantize(format, values), values.shape)
    assert np.all(np.abs(again - values) <= 2e-42)
