"""FP8 with scales by tensor, row or block: `fp8` of transformers, AutoFP8 and DeepSeek, and `fbgemm_fp8`.

A matrix P has its scales in P_scale_inv or P_scale, which multiply whatever their name says; of experts in
one tensor too. Scales are floats or, where `scale_fmt` is ue8m0, exponents of 2. DeepSeek-V4 has FP4 in I8.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from graphml.loading.huggingface.packings._floats import fp8, mxfp4_rows, scale_steps, shared_by
from graphml.loading.huggingface.packings._layout import Layout, Packing, PackingFields
from graphml.loading.huggingface.packings._parts import FLOATS, FP8, StoredParts
from graphml.weights import Tensor

SCALES = ("_scale_inv", "_scale")
FBGEMM = "fbgemm_fp8"


def read(fields: PackingFields) -> Layout:
    """The layout of a config."""
    block = fields.get("weight_block_size")
    if block is not None and not (
        isinstance(block, list) and len(block) == 2 and all(type(size) is int and size >= 0 for size in block)
    ):
        raise fields.error(f"weight_block_size: wanted two sizes; got {str(block)[:60]!r}")
    exponents = ("U8",) if fields.text("scale_fmt") == "ue8m0" else ()
    steps = (block[0], block[1]) if block and all(block) else None
    by_column = fields.text("quant_method") == FBGEMM
    return Layout(("", *SCALES), partial(_unpack, steps, exponents, by_column), dtypes=frozenset(FP8))


def unscaled() -> Layout:
    """FP8 of a checkpoint whose config says nothing of it: the values themselves."""

    def unpack(parts: StoredParts) -> Tensor:
        weight = parts.part("", FP8)
        return fp8(parts, weight, np.ones((), np.float32), weight.shape)

    return Layout(("",), unpack, dtypes=frozenset(FP8))


def _unpack(
    block: tuple[int, int] | None, exponents: tuple[str, ...], by_column: bool, parts: StoredParts
) -> Tensor:
    end = next((end for end in SCALES if end in parts), SCALES[0])
    if end not in parts:
        raise parts.wrong(end, f"a scale under this name or {SCALES[1]}", "no such tensor beside the matrix")
    weight = parts.part("", (*FP8, "I8"))
    if weight.dtype == "I8":  # FP4 in pairs, which has no other scales
        return mxfp4_rows(parts, "", end, ("I8",))
    if all(end in parts for end in SCALES):
        raise parts.wrong(SCALES[1], f"one scale, and there is {SCALES[0]}", "two")
    scales = parts.scales(end, dtypes=(*FLOATS, "F8_E8M0", *exponents))
    if by_column and len(weight.shape) == 3:  # experts [E, in, out] with scales [E, 1, out] or [E, out, 1]
        wanted = (weight.shape[0], 1, weight.shape[2])
        if scales.shape not in (wanted, (weight.shape[0], weight.shape[2], 1)):
            raise parts.wrong(end, f"a shape of {list(wanted)}", list(scales.shape))
        return fp8(parts, weight, scales.reshape(wanted), (1, weight.shape[1], 1))
    scales, steps = scale_steps(parts, end, scales, weight.shape, shared_by(weight.shape, block))
    return fp8(parts, weight, scales, steps)


PACKING = Packing(("fp8", FBGEMM), read)
