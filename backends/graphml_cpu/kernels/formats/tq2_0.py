"""TQ2_0: blocks of 256 in 66 bytes: 2 x 32 bytes of four planes of q each, d; x = d (q - 1)."""

from __future__ import annotations

from typing import Any

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.formats._groups import CpuFormatReader, everywhere
from graphml_cpu.kernels.formats._unpack import U8x32, floats, signed
from graphml_cpu.kernels.formats.q2_k import plane
from graphml_cpu.simd import load, load_f16, store


def make_decode() -> Any:
    """`decode(src, dst, k)`."""

    @inline
    def decode(src: int, dst: int, k: int) -> None:
        for block in range(k // 256):
            at, d = src + block * 66, load_f16(src + block * 66 + 64)
            for half in range(2):
                to = dst + block * 1024 + half * 512
                packed = load(U8x32, at + half * 32)
                store(to, floats(signed(packed & 3) - 1) * d)
                store(to + 128, floats(signed((packed >> 2) & 3) - 1) * d)
                store(to + 256, floats(signed((packed >> 4) & 3) - 1) * d)
                store(to + 384, floats(signed(packed >> 6) - 1) * d)

    return decode


@inline
def _read(at: int) -> Any:
    scales = (everywhere(load_f16(at + 64)),)
    return ((plane(at), plane(at + 16)), scales, ()), ((plane(at + 32), plane(at + 48)), scales, ())


def make_read() -> CpuFormatReader:
    """Two bits, 1 too much; one scale."""
    return CpuFormatReader(66, block_bytes=66, block_elements=256, read=_read, groups=2, offset=1)
