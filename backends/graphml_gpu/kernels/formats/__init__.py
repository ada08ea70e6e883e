"""Readers of weight formats for kernels: one file per format, named as the format, found by its name.

A file holds one `GpuFormatReader`. Its functions are written into every kernel that reads weights (products,
look-ups, conversions), so a format that gets a file here is known to all of them, and a kernel exists once.
Knows the block layouts (`graphml_quant` says what they mean); knows no kernel and no device.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil

from graphml.errors import BackendError
from graphml_gpu.kernels.formats._reader import UNIT, GpuFormatReader

__all__ = ["UNIT", "GpuFormatReader", "names", "reader"]


@functools.cache
def names() -> tuple[str, ...]:
    """The formats that kernels can read, in alphabetical order."""
    return tuple(sorted(entry.name for entry in pkgutil.iter_modules(__path__) if entry.name[0] != "_"))


@functools.cache
def reader(format: str) -> GpuFormatReader:
    """The reader of a format ("q4_k"); `BackendError` listing the known formats if there is none."""
    if format not in names():
        raise BackendError(f"kernels cannot read the format {format!r}; known are {', '.join(names())}")
    values = vars(importlib.import_module(f"{__name__}.{format}")).values()
    return next(value for value in values if isinstance(value, GpuFormatReader))
