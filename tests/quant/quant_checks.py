"""What the tests of formats share."""

from collections.abc import Callable

import numpy as np
from graphml_quant import Format, formats

from tests.looped import looped

FORMATS = list(formats().values())
ENCODING = [format for format in FORMATS if format.encode]
FLOATS = {"f32", "f16", "bf16"}


def each(formats: list[Format]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Try each format."""
    return looped("format", formats, ids=lambda format: format.name)


def same_bits(left: np.ndarray, right: np.ndarray) -> bool:
    """Compare float32 bits; a NaN equals any NaN."""
    if left.shape != right.shape:
        return False
    both_nan = np.isnan(left) & np.isnan(right)
    return bool(((left.view(np.uint32) == right.view(np.uint32)) | both_nan).all())
