"""What the tests of formats share."""

import numpy as np
import pytest
from graphml_quant import Format, formats

FORMATS = list(formats().values())
ENCODING = [format for format in FORMATS if format.encode]
FLOATS = {"f32", "f16", "bf16"}


def each(formats: list[Format]) -> pytest.MarkDecorator:
    """Run a test once per format."""
    return pytest.mark.parametrize("format", formats, ids=lambda format: format.name)


def same_bits(left: np.ndarray, right: np.ndarray) -> bool:
    """Compare float32 bits; a NaN equals any NaN."""
    if left.shape != right.shape:
        return False
    both_nan = np.isnan(left) & np.isnan(right)
    return bool(((left.view(np.uint32) == right.view(np.uint32)) | both_nan).all())
