"""NVFP4: blocks of 64 in 36 bytes: 4 scales s (E4M3), 4 x 8 bytes of nibbles i; x = s / 2 DOUBLED_E2M1[i]."""

from __future__ import annotations

from typing import Any

import numpy as np
from graphml_quant.nvfp4 import NVFP4
from numpy.typing import NDArray

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.formats._unpack import I8x16, U8x16, floats, pair_of
from graphml_cpu.kernels.formats.mxfp4 import doubled_e2m1
from graphml_cpu.simd import constant_table, load, load_f32, load_u8, lookup16, shuffle_pair_by, store


def _scale_values() -> NDArray[np.float32]:
    """What each scale byte stands for [256]: the value that the format's decoder gives to nibble 1."""
    blocks = np.full((256, NVFP4.block_bytes), 0x11, np.uint8)
    blocks[:, :4] = np.arange(256, dtype=np.uint8)[:, None]
    return np.ascontiguousarray(NVFP4.decode(blocks)[:, 0], "<f4")


_scales = constant_table(_scale_values().tobytes())
# Two groups of 8 low nibbles and two of 8 high ones -> both halves of a group side by side.
_groups = shuffle_pair_by([*range(8), *range(16, 24), *range(8, 16), *range(24, 32)])


def make_decode() -> Any:
    """`decode(src, dst, k)`."""

    @inline
    def decode(src: int, dst: int, k: int) -> None:
        table, scales = load(I8x16, doubled_e2m1()), _scales()
        for block in range(k // 64):
            at = src + block * 36
            for two_groups in range(2):
                packed = load(U8x16, at + 4 + two_groups * 16)
                numbers = lookup16(table, _groups(packed & 15, packed >> 4))
                first = load_f32(scales + load_u8(at + 2 * two_groups) * 4)
                second = load_f32(scales + load_u8(at + 2 * two_groups + 1) * 4)
                store(dst + block * 256 + two_groups * 128, floats(numbers) * pair_of(first, second))

    return decode
