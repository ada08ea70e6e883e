"""Encoders of weight formats: one file per format, named as the format, found by its name.

A file holds `make_encode(weighted)`, which returns an inline function

    encode(x, weights, row_mean, scratch, out)

for `LANES` blocks at once, one in each lane of every vector (`_lanes`):

    x          element e of the blocks is the vector F32 at x + e * F32_BYTES; all are finite
    weights    of `weighted` encoders the importance of that element, at weights + e * F32_BYTES
    row_mean   of `weighted` encoders of the formats in ROW_MEANS: the mean of the squares of each block's row
    scratch    `layouts.ENCODER_FREE` bytes for each lane
    out        byte b of the encoded blocks is the vector U8 at out + b * LANES; each has to be written

and `HALVES`, where there are any: the bytes of a block at which its scales of half precision begin, two at
most; a matrix is refused if one of them is not finite, or a value above 2^31. Others take all finite values.
A half that is in pieces in the block is also stored behind it, where two bytes are free.

So a search is written as for one block, element after element in ggml's order; lanes are compared by masks,
and nothing crosses from one to another. A format says nothing of memory, rows or threads, which `blocks`
knows. The searches that formats share: `_minima` (a scale and a minimum), `_positive` (the scale of scales).
Where ggml's bytes are kept, so are its order of sums and its roundings: no `fma`, no reciprocals in place of
divisions.

Knows which formats there are; importing this package imports neither the front end nor an encoder.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from typing import Any

from graphml.errors import BackendError

ROW_MEANS = ("q4_0", "q4_1", "q5_0", "q5_1")
ELEMENTS = ("bf16", "f16")
"""Formats without blocks, which `elements` encodes."""
_SHARED = ("blocks", "elements")


@functools.cache
def names() -> tuple[str, ...]:
    """The formats that have an encoder here, in alphabetical order."""
    files = (entry.name for entry in pkgutil.iter_modules(__path__))
    return tuple(sorted(name for name in files if name[0] != "_" and name not in _SHARED))


def make_encode(format: str, weighted: bool) -> Any:
    """The inline function `encode` of a format ("q4_k").

    Raises `BackendError` listing the known formats if there is none of this name.
    """
    if format not in names():
        raise BackendError(f"kernels cannot encode the format {format!r}; known are {', '.join(names())}")
    return importlib.import_module(f"{__name__}.{format}").make_encode(weighted)


def halves(format: str) -> tuple[int, int]:
    """The `HALVES` of a format; -1 for none."""
    places: tuple[int, ...] = getattr(importlib.import_module(f"{__name__}.{format}"), "HALVES", ())
    first, second = (*places, -1, -1)[:2]
    return first, second
