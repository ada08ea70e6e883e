"""What `dequantize` and `quantize` take and refuse, for every format."""

import mmap

import ggml_record
import numpy as np
import pytest
from graphml_quant import Format, FormatError, by_name, dequantize, quantize
from quant_checks import ENCODING, FLOATS, FORMATS, each, same_bits

from tests.looped import looped


@each([format for format in ENCODING if format.name not in FLOATS])
def test_block_formats_refuse_what_is_not_finite(format: Format) -> None:
    values = np.zeros((3, 2 * format.block_elements))
    for bad in (np.nan, np.inf, 1e39):  # 1e39 is finite only in float64
        values[2, 5] = bad
        with pytest.raises(FormatError, match=rf"{format.name}.*\(2, 5\).*finite"):
            quantize(format, values)


@each(ENCODING)
def test_encoding_takes_any_strides_and_float_types(format: Format) -> None:
    columns = 2 * format.block_elements
    values = np.linspace(-1, 1, 12 * columns).reshape(4, columns, 3).transpose(2, 0, 1)
    expected = quantize(format, np.ascontiguousarray(values, np.float32))
    assert expected.shape == (3, 4, format.bytes_for(columns))
    assert np.array_equal(quantize(format, values), expected)
    assert np.array_equal(quantize(format, values[::-1, ::2])[0], expected[2, ::2])


@each(FORMATS)
def test_decoding_takes_any_buffer_and_strides(format: Format, tmp_path) -> None:
    blocks = ggml_record.sample_blocks(format)[:12]
    shape = (3, 4 * format.block_elements)
    expected = dequantize(format, blocks, shape)
    raw = blocks.tobytes()
    spread = np.zeros((24, format.block_bytes * 3), np.uint8)
    spread[::2, 1::3] = blocks
    (tmp_path / "raw").write_bytes(raw)
    with (tmp_path / "raw").open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        for data in (raw, bytearray(raw), memoryview(raw), spread[::2, 1::3], mapped):
            assert same_bits(dequantize(format, data, shape), expected)
    # the decoder itself takes strides too, and leaves its input alone
    strided = spread[::2, 1::3]
    before = strided.copy()
    assert same_bits(format.decode(strided), expected.reshape(12, -1))
    assert np.array_equal(strided, before)


@each(FORMATS)
def test_decoding_many_pieces_equals_block_by_block(format: Format) -> None:
    blocks = ggml_record.sample_blocks(format)
    repeated = np.tile(blocks, (300_000 // (len(blocks) * format.block_elements) + 1, 1))
    whole = dequantize(format, repeated, (len(repeated), format.block_elements))
    for place in (0, 1, 1023, 1024, len(repeated) - 1):
        assert same_bits(whole[place], format.decode(repeated[place : place + 1])[0])
    assert whole.flags.writeable
    assert whole.dtype == np.float32


@each(FORMATS)
@looped("shape", [(0,), (3, 0), (0, 512)])
def test_empty_tensors(format: Format, shape: tuple[int, ...]) -> None:
    values = dequantize(format, b"", shape)
    assert values.shape == shape
    assert values.dtype == np.float32
    if format.encode:
        assert quantize(format, values).shape == (*shape[:-1], format.bytes_for(shape[-1]))


@each(FORMATS)
def test_wrong_sizes_are_refused(format: Format) -> None:
    row = 2 * format.block_elements
    size = 3 * format.bytes_for(row)
    for wrong in (size - 1, size + 1, 0):
        with pytest.raises(FormatError, match=rf"{format.name}.*{size} bytes, but {wrong} came"):
            dequantize(format, bytes(wrong), (3, row))
    with pytest.raises(FormatError, match="negative"):
        dequantize(format, bytes(size), (-3, -row))
    with pytest.raises(FormatError, match="uint8"):
        dequantize(format, np.zeros(size, np.int8), (3, row))
    with pytest.raises(FormatError, match="uint8"):
        dequantize(format, "text", (3, row))
    with pytest.raises(FormatError):
        format.bytes_for(-format.block_elements)
    if format.block_elements > 1:
        # three rows of half a block more or less are whole blocks together, but not one by one
        with pytest.raises(FormatError, match=rf"{format.name}.*blocks of {format.block_elements}"):
            dequantize(format, bytes(size), (6, row // 2 - 1))
        with pytest.raises(FormatError, match=rf"{format.name}.*blocks of {format.block_elements}"):
            format.bytes_for(row - 1)


@each(FORMATS)
def test_hostile_shapes_cost_nothing(format: Format) -> None:
    with pytest.raises(FormatError, match="bytes, but 0 came"):
        dequantize(format, b"", (2**62, 2**62))
    with pytest.raises(FormatError, match="not a possible array"):
        dequantize(format, b"", (0, 2**62, 512))


@each(FORMATS)
def test_what_cannot_be_encoded_is_refused(format: Format) -> None:
    values = np.zeros((2, format.block_elements), np.float32)
    if format.encode is None:
        with pytest.raises(FormatError, match=rf"{format.name}.*no encoder"):
            quantize(format, values)
        return
    with pytest.raises(FormatError, match="int32"):
        quantize(format, values.astype(np.int32))
    if format.block_elements > 1:
        with pytest.raises(FormatError, match=rf"blocks of {format.block_elements}"):
            quantize(format, values[:, 1:])


def test_a_scalar_is_one_element() -> None:
    f32 = by_name("f32")
    assert quantize(f32, np.float32(1.5)).shape == (4,)
    assert dequantize(f32, np.float32(1.5).tobytes(), ()).shape == ()
    assert dequantize(f32, np.float32(1.5).tobytes(), ())[()] == 1.5
