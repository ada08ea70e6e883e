"""BitNet: four ternary numbers in a byte, [out / 4, in], the rows of each quarter of the outputs together.

`bitlinear` divides by the scale of the matrix, `autobitlinear` multiplies by it. The mode online, whose
floats each forward rounds anew, is refused.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from graphml.loading.huggingface.packings._integers import grouped
from graphml.loading.huggingface.packings._layout import Layout, Packing, PackingFields
from graphml.loading.huggingface.packings._parts import StoredParts
from graphml.weights import Tensor

PER_BYTE = 4
EXTREMES = (-1, 1)
SCALE = "_scale"
CLASSES = ("bitlinear", "autobitlinear")


def read(fields: PackingFields) -> Layout:
    """The layout of a config."""
    kind = fields.text("linear_class", default=CLASSES[0])
    if kind not in CLASSES:
        raise fields.error(f"linear_class: wanted {' or '.join(CLASSES)}; got {kind!r}")
    if fields.text("quantization_mode", default="offline") != "offline":
        got = fields.text("quantization_mode")
        raise fields.error(
            f"quantization_mode: wanted offline, whose weights are ternary in the file; got {got!r}"
        )
    fields.none_of("use_rms_norm", "the norm before each product has no place in the architecture")
    return Layout(("", SCALE), partial(_unpack, kind == CLASSES[0]), dtypes=frozenset({"U8"}))


def _unpack(divides: bool, parts: StoredParts) -> Tensor:
    packed = parts.part("", ("U8",), (None, None))
    factor = parts.factor(SCALE)
    n_out, n_in = packed.shape[0] * PER_BYTE, packed.shape[1]
    scales = np.full((n_out, 1), parts.inverse(SCALE, factor) if divides else factor, np.float32)

    def numbers() -> NDArray[np.int8]:
        bytes_ = packed.data.reshape(1, -1, n_in) >> (2 * np.arange(PER_BYTE, dtype=np.uint8))[:, None, None]
        quarters = (bytes_ & np.uint8(3)).reshape(n_out, n_in)
        if bool((quarters == 3).any()):
            raise parts.wrong("", "numbers -1, 0 and 1, as 0, 1 and 2", 3)
        return quarters.astype(np.int8) - np.int8(1)

    zeros = np.zeros((n_out, 1), np.int16)
    return grouped(parts, numbers, EXTREMES, zeros, scales, np.zeros(n_in, np.intp))


PACKING = Packing(("bitnet",), read)
