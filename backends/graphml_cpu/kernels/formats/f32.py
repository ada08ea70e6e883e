"""F32: rows of single precision, copied."""

from __future__ import annotations

from typing import Any

from graphml_cpu.kernels.formats._floats import make_float_decode


def make_decode() -> Any:
    """`decode(src, dst, k)` for rows of any length."""
    return make_float_decode("f32")
