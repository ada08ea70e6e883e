"""Every decoder of kernels against graphml_quant's, bit by bit, through get_rows; at every level.

A new weight format is tested by these without a change here.
"""

from __future__ import annotations

import ctypes
import mmap
import sys

import numpy as np
import pytest
from graphml_cpu.compiler import LoadedKernel
from graphml_cpu.kernels.formats import make_decode, names
from graphml_quant import Format, formats

from graphml.errors import BackendError
from tests.cpu.kernels.running import THREADS, kernel, run
from tests.cpu.weights import ordinary_weights
from tests.looped import looped
from tests.quant.ggml_record import sample_blocks

# What activations are quantised to inside ggml; no weights of these are met in files.
ACTIVATIONS = {"q8_1", "q8_k"}
WEIGHTS = [format for name, format in formats().items() if name not in ACTIVATIONS]
each_format = pytest.mark.parametrize("format", WEIGHTS, ids=lambda format: format.name)


def get_rows(format: Format) -> LoadedKernel:
    return kernel("indexing.get_rows", "make_get_rows", format.name)


def decode_row(format: Format, row: np.ndarray, k: int) -> np.ndarray:
    """One row of k elements, decoded by the kernel into the middle of a marked array."""
    out = np.full(k + 32, 7, np.float32)
    run(get_rows(format), table=row, indices=np.zeros(1, np.int32), out=out[16:], k=k, row_bytes=0,
        n_table_rows=1, out_stride=0, rows=1)  # fmt: skip
    assert (out[:16] == 7).all()
    assert (out[16 + k :] == 7).all()
    return out[16 : 16 + k]


def assert_same_bits(got: np.ndarray, wanted: np.ndarray) -> None:
    got, wanted = (np.where(np.isnan(v), np.float32(np.nan), v).view(np.uint32) for v in (got, wanted))
    np.testing.assert_array_equal(got, wanted)


def test_every_weight_format_has_a_decoder() -> None:
    missing = {format.name for format in WEIGHTS} - set(names())
    assert not missing, f"write backends/graphml_cpu/kernels/formats/{missing.pop()}.py"
    assert set(names()) <= set(formats())


def test_an_unknown_format_is_named_with_the_known_ones() -> None:
    with pytest.raises(BackendError, match=r"'q9_z'.*q4_k"):
        make_decode("q9_z")


@each_format
def test_decoding_has_the_bits_of_graphml_quant(format: Format) -> None:
    # Random bits, and scales that are infinite, NaN, zero and subnormal.
    blocks = sample_blocks(format)
    wanted = format.decode(blocks).reshape(-1)
    assert_same_bits(decode_row(format, blocks, wanted.size), wanted)


@each_format
def test_decoding_reads_its_blocks_alone(format: Format) -> None:
    if sys.platform != "linux":
        pytest.skip("needs mprotect")
    page = mmap.PAGESIZE
    with mmap.mmap(-1, 2 * page) as memory:
        base = np.frombuffer(memory, np.uint8).ctypes.data
        libc = ctypes.CDLL(None)
        assert libc.mprotect(ctypes.c_void_p(base + page), ctypes.c_size_t(page), 0) == 0
        blocks = sample_blocks(format)[300:303]
        row = np.frombuffer(memory, np.uint8)[page - blocks.size : page]
        row[:] = blocks.reshape(-1)
        wanted = format.decode(blocks).reshape(-1)
        assert_same_bits(decode_row(format, row, wanted.size), wanted)
        assert libc.mprotect(ctypes.c_void_p(base + page), ctypes.c_size_t(page), mmap.PROT_READ) == 0
        del row


@looped("name", ["f32", "f16", "bf16"])
@looped("k", [1, 3, 4, 15, 16, 17, 33, 100])
def test_floats_of_any_length(name: str, k: int) -> None:
    format = formats()[name]
    blocks = sample_blocks(format)[300 : 300 + k]
    assert_same_bits(decode_row(format, blocks, k), format.decode(blocks).reshape(-1))


@pytest.mark.parametrize("name", ["f16", "q4_0", "q6_k"])
def test_get_rows_takes_rows_in_any_order_and_clamps(name: str) -> None:
    format, k = formats()[name], 512
    table = ordinary_weights(format, 9, k)
    indices = np.array([3, 0, 8, 3, -1, 9, 2**31 - 1, -(2**31), 5], np.int32)
    known = (indices >= 0) & (indices < 9)
    wanted = format.decode(table.reshape(-1, format.block_bytes)).reshape(9, k)[np.where(known, indices, 0)]
    wanted[~known] = 0
    for nth in THREADS:
        out = np.full((9, k + 5), 7, np.float32)
        run(get_rows(format), nth, table=table, indices=indices, out=out, k=k, row_bytes=table.shape[1],
            n_table_rows=9, out_stride=(k + 5) * 4, rows=9)  # fmt: skip
        np.testing.assert_array_equal(out[:, :k], wanted)
        assert (out[:, k:] == 7).all()
