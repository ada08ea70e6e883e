"""Q4_K: d, e, 12 bytes of 6-bit s and m of 8 groups of 32, then 4 x 32 bytes of 4-bit q; x = d s q - e m."""

from __future__ import annotations

from typing import Any

from graphml_gpu.kernels.formats._reader import GpuFormatReader, Integers
from graphml_gpu.kernels.formats._words import bytes4, high4, low4, two_words
from graphml_gpu.language import Read, Vector, f32, function, select, u32, u32x4, unpack_half2


@function
def group_scale(w: Read[u32], at: u32, group: u32) -> Any:
    """d s and e m of one of the 8 groups (as in Q5_K); see `graphml_quant.q4_k` for the layout."""
    first = at >> 2
    head = unpack_half2(w[first])
    shift = 8 * (group & 3)
    a, b, c = w[first + 1] >> shift, w[first + 2] >> shift, w[first + 3] >> shift
    upper = group >= 4
    s = select(upper, (c & 15) | ((a >> 2) & 48), a & 63)
    m = select(upper, ((c >> 4) & 15) | ((b >> 2) & 48), b & 63)
    return f32(s) * head.x, f32(m) * head.y


@function
def pairs_place(part: u32, QUAD: Any) -> Any:
    """Where quads stand: bytes hold elements of two groups, 32 apart."""
    return ((part >> 2) << 6) + 8 * (part & 3) + 4 * (QUAD & 1) + 32 * (QUAD >> 1)


@function
def unpack(w: Read[u32], table: Read[u32], at: u32, part: u32, ALIGN: int) -> Any:
    """Eight bytes: eight elements of a group, and eight of the next."""
    pair = part >> 2
    scale, minimum = group_scale(w, at, 2 * pair)
    next_scale, next_minimum = group_scale(w, at, 2 * pair + 1)
    a, b = two_words(w, at + 16 + 32 * pair + 8 * (part & 3), ALIGN)
    return (
        bytes4(low4(a)) * scale - minimum,
        bytes4(low4(b)) * scale - minimum,
        bytes4(high4(a)) * next_scale - next_minimum,
        bytes4(high4(b)) * next_scale - next_minimum,
    )


@function
def pair_scales(head: Vector[int], pair: u32) -> Any:
    """d s and -e m of groups 2 * pair and the next, from a block's first 16 bytes: scales, offsets."""
    scale = unpack_half2(head.x)
    shift = 16 * (pair & 1)
    a, b, c = head.y >> shift, head.z >> shift, head.w >> shift
    upper = pair >= 2
    s = select(upper, (c & 0x0F0F) | ((a >> 2) & 0x3030), a & 0x3F3F)
    m = select(upper, ((c >> 4) & 0x0F0F) | ((b >> 2) & 0x3030), b & 0x3F3F)
    return f32(s & 255) * scale.x, f32(s >> 8) * scale.x, f32(m & 255) * -scale.y, f32(m >> 8) * -scale.y


@function
def pair_place(part: u32, NUMBER: Any) -> Any:
    """Bytes hold elements of two groups."""
    return 2 * part + NUMBER


@function
def numbers(w: Read[u32x4], table: Read[u32], at: u32, part: u32, ALIGN: int) -> Any:
    """32 bytes: a group and the next."""
    begin = at >> 4
    scale, next_scale, offset, next_offset = pair_scales(w[begin], part)
    first, last = w[begin + 1 + 2 * part], w[begin + 2 + 2 * part]
    low = u32x4(0x0F0F0F0F)
    four = u32x4(4)
    return (
        first & low, last & low, scale, scale, offset,
        (first >> four) & low, (last >> four) & low, next_scale, next_scale, next_offset,
    )  # fmt: skip


Q4_K = GpuFormatReader(
    256, 144, unpack, pairs_place, integers=Integers(numbers, pair_place, groups=2, wide=True)
)
