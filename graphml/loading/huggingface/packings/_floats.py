"""Matrices of small floats with scales: FP8 by tensor, row or block, and FP4 by groups of 16 or 32.

Knows the numbers and where their scales apply; nothing of how a packing names them.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from graphml.loading.huggingface.packed_matrix import PackedMatrix, ScaledMatrix
from graphml.loading.huggingface.packings._parts import POWERS, Floats, StoredParts, float_values
from graphml.weights import Tensor
from graphml.weights.deferred import DeferredTensor
from graphml.weights.filemap import Bytes
from graphml.weights.safetensors import StoredTensor

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
NVFP4_GROUP, MXFP4_BLOCK = 16, 32
NVFP4_SCALES = 4  # in a block
Steps = tuple[int, ...]
"""How many elements share a scale, along each axis."""


def fp8(parts: StoredParts, weight: StoredTensor, scales: Floats, steps: Steps) -> Tensor:
    """Bytes times scales, float32; scales have as many axes as the matrix, or are one."""

    def compute() -> Bytes:
        values = float_values(weight)
        values *= spread(scales, weight.shape, steps)
        return values.reshape(-1).view(np.uint8)

    return DeferredTensor.of(parts.name, "f32", weight.shape, compute)


def spread(scales: Floats, shape: tuple[int, ...], steps: Steps) -> Floats:
    """Scales repeated so that they multiply a matrix of a shape; one scale along an axis stays one."""
    if scales.size == 1:
        return scales.reshape(())
    for axis, step in enumerate(steps):
        if scales.shape[axis] > 1 and step > 1:
            scales = np.repeat(scales, step, axis)
    return scales[tuple(slice(extent) for extent in shape)]


def by_blocks(shape: tuple[int, ...], steps: Steps) -> tuple[int, ...]:
    """The shape of the scales of a matrix."""
    return tuple(-(-extent // step) for extent, step in zip(shape, steps, strict=True))


def scale_steps(
    parts: StoredParts, end: str, scales: Floats, shape: tuple[int, ...], wanted: Iterable[Steps]
) -> tuple[Floats, Steps]:
    """The scales with as many axes as the matrix, and the steps that they are for, of those wanted."""
    shapes = []
    for steps in wanted:
        whole = by_blocks(shape, steps)
        if scales.shape + (1,) * (len(whole) - scales.ndim) == whole:
            return scales.reshape(whole), steps
        shapes.append(str(list(whole)))
    raise parts.wrong(end, f"a shape of {' or '.join(shapes)}", list(scales.shape))


def nvfp4(parts: StoredParts, packed: str, scale: str, of_all: str, inverse: bool) -> Tensor:
    """FP4 in pairs, low nibble first, with scales in E4M3 by 16 and one for all, as blocks of ggml.

    There four groups are a block: their scales, then 8 bytes each, low nibbles the first half; of rows that
    are no whole blocks it is float32. inverse: scales are divided by the one for all.
    """
    factor = parts.factor(of_all)
    beside = parts.inverse(of_all, factor) if inverse else factor
    pairs = parts.part(packed, ("U8",), (None, None))
    rows, n_in = pairs.shape[0], 2 * pairs.shape[1]
    if n_in % NVFP4_GROUP:
        raise parts.wrong(packed, "rows of groups of 8 bytes", list(pairs.shape))
    shape = (rows, n_in // NVFP4_GROUP)
    stored = parts.part(scale, ("F8_E4M3",), shape)

    def checked() -> Floats:  # when they are read: they are a ninth of the file
        scales = parts.scales(scale, dtypes=("F8_E4M3",))
        if bool(np.signbit(scales).any()):
            raise parts.wrong(scale, "scales from 0 up", scales.min())
        return scales

    def values() -> Floats:
        scales = checked()
        numbers = _fp4_numbers(pairs.data.reshape(rows, -1)).reshape(*shape, NVFP4_GROUP)
        by_group = scales / factor if inverse else scales * factor
        products: Floats = np.concatenate([E2M1, -E2M1])[numbers] * by_group[:, :, None]
        return products

    def blocks() -> Bytes:
        body = _halves(pairs, NVFP4_GROUP // 2)
        checked()
        together = [stored.data.reshape(-1, NVFP4_SCALES), body.reshape(-1, NVFP4_SCALES * NVFP4_GROUP // 2)]
        joined: Bytes = np.concatenate(together, axis=1).reshape(-1)
        return joined

    if shape[1] % NVFP4_SCALES:
        return PackedMatrix.of(parts.name, "f32", (rows, n_in), lambda: values().reshape(-1).view(np.uint8))
    return ScaledMatrix.scaled(parts.name, "nvfp4", (rows, n_in), beside, blocks, values)


def shared_by(shape: tuple[int, ...], block: tuple[int, int] | None) -> list[Steps]:
    """What may share a scale: all; a row; a block; of experts in one tensor also a matrix or a column."""
    if len(shape) < 2:
        return [shape]
    experts = (1,) * (len(shape) - 2)
    allowed: list[Steps] = [shape, (*experts, 1, shape[-1])]
    if block is not None:
        allowed.append((*experts, *block))
    if experts:
        allowed += [(*experts, shape[-2], shape[-1]), (*experts, shape[-2], 1)]
    return allowed


def mxfp4(
    parts: StoredParts, pairs: StoredTensor, exponents: StoredTensor, shape: tuple[int, ...], end: str
) -> Tensor:
    """FP4 in pairs, low nibble first, with exponents by 32, as blocks of ggml.

    There a block is its exponent and 16 bytes whose low nibbles are the first half. end: of the exponents.
    """

    def compute() -> Bytes:
        if bool(np.isnan(POWERS[exponents.data]).any()):
            raise parts.wrong(end, "exponents 0 to 254", "255, which is NaN")
        body = _halves(pairs, MXFP4_BLOCK // 2)
        blocks: Bytes = np.concatenate([exponents.data.reshape(-1, 1), body], axis=1).reshape(-1)
        return blocks

    return DeferredTensor.of(parts.name, "mxfp4", shape, compute)


def mxfp4_rows(parts: StoredParts, packed: str, scale: str, dtypes: tuple[str, ...]) -> Tensor:
    """MXFP4 of a matrix whose rows are bytes [out, in / 2], of one of these dtypes."""
    pairs = parts.part(packed, dtypes, (None, None))
    rows, n_in = pairs.shape[0], 2 * pairs.shape[1]
    if n_in % MXFP4_BLOCK:
        raise parts.wrong(packed, "rows of groups of 16 bytes", list(pairs.shape))
    exponents = parts.part(scale, ("U8", "F8_E8M0"), (rows, n_in // MXFP4_BLOCK))
    return mxfp4(parts, pairs, exponents, (rows, n_in), scale)


def _halves(pairs: StoredTensor, size: int) -> Bytes:
    """Blocks of so many bytes whose low nibbles are the first half, of bytes of neighbouring numbers."""
    numbers = _fp4_numbers(pairs.data.reshape(-1, size)).reshape(-1, 2, size)
    return np.bitwise_or(numbers[:, 0], np.left_shift(numbers[:, 1], 4), dtype=np.uint8)


def _fp4_numbers(pairs: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The numbers of bytes [n, m], low nibbles first: [n, m, 2]."""
    return np.stack([pairs & 15, pairs >> 4], -1)
