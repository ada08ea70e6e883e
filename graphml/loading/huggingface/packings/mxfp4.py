"""MXFP4 of gpt-oss: P_blocks [.., out, in / 32, 16], two numbers a byte, and P_scales [.., out, in / 32]."""

from __future__ import annotations

from graphml.loading.huggingface.packings._floats import MXFP4_BLOCK, mxfp4
from graphml.loading.huggingface.packings._layout import Layout, Packing, PackingFields
from graphml.loading.huggingface.packings._parts import StoredParts
from graphml.weights import Tensor

BLOCKS, SCALES = "_blocks", "_scales"


def read(fields: PackingFields) -> Layout:
    """The layout, which no field changes."""
    return Layout((BLOCKS, SCALES), _unpack)


def _unpack(parts: StoredParts) -> Tensor:
    exponents = parts.part(SCALES, ("U8",))
    pairs = parts.part(BLOCKS, ("U8",), (*exponents.shape, MXFP4_BLOCK // 2))
    shape = (*exponents.shape[:-1], exponents.shape[-1] * MXFP4_BLOCK)
    return mxfp4(parts, pairs, exponents, shape, SCALES)


PACKING = Packing(("mxfp4",), read)
