"""AWQ of 4 bits in the layouts of AutoAWQ: `WQLinear_GEMM`, `WQLinear_GEMV` and `WQLinear_GEMVFast`.

gemm: qweight [in, out / 8] and qzeros [groups, out / 8] hold numbers along outputs, in another order within
a word; scales [groups, out]. gemv: qweight [out, in / 8], qzeros [out, groups / 8] and scales [out, groups],
the groups padded. gemv_fast: int16 [out / 4, in] of four rows interleaved, scales and -scale * zero
[groups, out] as float16, padded.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from graphml.loading.huggingface.packed_matrix import PackedMatrix
from graphml.loading.huggingface.packings._integers import bit_numbers, grouped
from graphml.loading.huggingface.packings._layout import Layout, Packing, PackingFields
from graphml.loading.huggingface.packings._parts import StoredParts
from graphml.weights import Tensor
from graphml.weights.filemap import Bytes

PER_WORD, BITS = 8, 4
EXTREMES = (0, 15)
GEMM_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # where in its word the number of a column is
ROWS, STRIDE = 4, 64  # rows that gemv_fast interleaves, and inputs after which the next of them follows
SAME_AS_GEMM = ("exllama", "ipex")  # kernels that read the layout of gemm


def read(fields: PackingFields) -> Layout:
    """The layout of a config."""
    fields.whole("bits", "w_bit", default=BITS, allowed=(BITS,))
    version = fields.text("version", "format", default="gemm")
    version = "gemm" if version in SAME_AS_GEMM else version
    if version not in LAYOUTS or fields.text("backend") == "llm-awq":
        got = version if version not in LAYOUTS else "llm-awq"
        raise fields.error(f"version: of awq graphml reads {', '.join(LAYOUTS)}; got {got!r}")
    group = fields.group_size("group_size", "q_group_size")
    unpack = partial(LAYOUTS[version], group)
    return Layout((".qweight", ".qzeros", ".scales"), unpack, whole=".weight")


def _gemm(group: int, parts: StoredParts) -> Tensor:
    qweight = parts.part(".qweight", ("I32",), (None, None))
    n_in, n_out = qweight.shape[0], qweight.shape[1] * PER_WORD
    group = group or n_in
    n_group = -(-n_in // group)
    scales = parts.scales(".scales", (n_group, n_out))
    zeros = _columns(parts.whole_numbers(".qzeros", ("I32",), (n_group, n_out // PER_WORD)))

    def numbers() -> NDArray[np.uint8]:
        return _columns(parts.whole_numbers(".qweight", ("I32",))).T

    groups = np.arange(n_in) // group
    return grouped(parts, numbers, EXTREMES, zeros.T, np.ascontiguousarray(scales.T), groups)


def _columns(words: NDArray[np.int32]) -> NDArray[np.uint8]:
    """Numbers along outputs, in the order of the outputs."""
    eights = bit_numbers(words, BITS).reshape(len(words), -1, PER_WORD)
    return eights[..., GEMM_ORDER].reshape(len(words), -1)


def _gemv(group: int, parts: StoredParts) -> Tensor:
    qweight = parts.part(".qweight", ("I32",), (None, None))
    n_out, n_in = qweight.shape[0], qweight.shape[1] * PER_WORD
    group = group or n_in
    width = _padded_groups(parts, n_in, group)
    n_group = n_in // group
    scales = parts.scales(".scales", (n_out, width * PER_WORD))[:, :n_group]
    zeros = bit_numbers(parts.whole_numbers(".qzeros", ("I32",), (n_out, width)), BITS)[:, :n_group]

    def numbers() -> NDArray[np.uint8]:
        return bit_numbers(parts.whole_numbers(".qweight", ("I32",)), BITS)

    return grouped(parts, numbers, EXTREMES, zeros, np.ascontiguousarray(scales), np.arange(n_in) // group)


def _padded_groups(parts: StoredParts, n_in: int, group: int) -> int:
    """The words that hold the zeros of a row, as `calculate_zeros_width` of AutoAWQ."""
    multiple = {64: 2, 32: 4}.get(group, 1)
    if n_in % group or (group < 128 and group not in (32, 64)):
        raise parts.error(f"{n_in} inputs in groups of {group}: wanted whole groups of 32, 64, 128 or more")
    words = (n_in // group + PER_WORD - 1) // PER_WORD
    return (words + multiple - 1) // multiple * multiple


def _gemv_fast(group: int, parts: StoredParts) -> Tensor:
    qweight = parts.part(".qweight", ("I16",), (None, None))
    n_out, n_in = qweight.shape[0] * ROWS, qweight.shape[1]
    group = group or n_in
    if n_in % STRIDE:
        raise parts.wrong(".qweight", f"a multiple of {STRIDE} inputs", list(qweight.shape))
    n_group, shape = n_in // group, (_padded_groups(parts, n_in, group) * PER_WORD, n_out)
    scales = parts.scales(".scales", shape)[:n_group].T
    offsets = parts.scales(".qzeros", shape)[:n_group].T

    def compute() -> Bytes:
        q = _interleaved(parts.whole_numbers(".qweight", ("I16",)), n_out, n_in)
        values = np.repeat(scales, group, 1) * q.astype(np.float32) + np.repeat(offsets, group, 1)
        return np.ascontiguousarray(values).reshape(-1).view(np.uint8)

    return PackedMatrix.of(parts.name, "f32", (n_out, n_in), compute)


def _interleaved(words: NDArray[np.int16], n_out: int, n_in: int) -> NDArray[np.uint8]:
    """The numbers [out, in] of gemv_fast: its packing undone, step by step from the last."""
    shifts = np.arange(ROWS, dtype=np.uint16) * np.uint16(BITS)
    fours = ((words.view(np.uint16)[..., None] >> shifts) & np.uint16(15)).astype(np.uint8)
    rows = fours.reshape(n_out // ROWS, n_in // STRIDE, ROWS, STRIDE).transpose(0, 2, 1, 3)
    pairs = rows.reshape(n_out, n_in // 32, 4, 2, 4).transpose(0, 1, 2, 4, 3)
    return pairs.reshape(n_out, n_in // 32, 4, 4, 2).transpose(0, 1, 3, 2, 4).reshape(n_out, n_in)


LAYOUTS: dict[str, Callable[[int, StoredParts], Tensor]] = {
    "gemm": _gemm,
    "gemv": _gemv,
    "gemv_fast": _gemv_fast,
}
PACKING = Packing(("awq",), read)
