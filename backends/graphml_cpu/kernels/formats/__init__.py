"""Decoders of weight formats for kernels: one file per format, named as the format, found by its name.

A file holds `make_decode()`, which returns an inline function `decode(src, dst, k)`: the k elements (whole
blocks) of one row at address `src` become float32 at address `dst`, with the bits of `graphml_quant`'s
decoder (a NaN's payload aside). Nothing past the k elements is read or written. Formats whose product has a
kernel of its own stand here like all others: every format can be multiplied and looked up through these.
Formats that a cache may be kept in have `make_encode()`, which returns `encode(src, dst, k)`, the other way,
with the bits of `graphml_quant`'s encoder; a block with a NaN or an infinity becomes NaN.

A file may also hold `make_read()`, which returns a `CpuFormatReader` (`_groups`): then its weights are
multiplied with activations of 8 bits, in integers. A format without one is decoded and multiplied in float32.

Knows which formats there are; importing this package imports neither the front end nor a decoder.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import pkgutil
from importlib.abc import InspectLoader
from typing import TYPE_CHECKING, Any

from graphml.errors import BackendError

if TYPE_CHECKING:
    from graphml_cpu.kernels.formats._groups import CpuFormatReader


@functools.cache
def names() -> tuple[str, ...]:
    """The formats that have a decoder here, in alphabetical order."""
    return tuple(sorted(entry.name for entry in pkgutil.iter_modules(__path__) if entry.name[0] != "_"))


@functools.cache
def has_reader(format: str) -> bool:
    """Whether the file of a format defines `make_read`; found in its compiled code, without running it."""
    if format not in names():
        return False
    spec = importlib.util.find_spec(f"{__name__}.{format}")
    code = spec.loader.get_code(spec.name) if spec and isinstance(spec.loader, InspectLoader) else None
    return code is not None and "make_read" in code.co_names


def make_read(format: str) -> CpuFormatReader:
    """The `CpuFormatReader` of a format; `BackendError` if it has none."""
    if not has_reader(format):
        raise BackendError(f"kernels cannot multiply the format {format!r} in integers")
    reader: CpuFormatReader = importlib.import_module(f"{__name__}.{format}").make_read()
    return reader


def make_decode(format: str) -> Any:
    """The inline function `decode(src, dst, k)` of a format ("q4_k"), for use inside a kernel.

    Raises `BackendError` listing the known formats if there is none of this name.
    """
    if format not in names():
        raise BackendError(f"kernels cannot decode the format {format!r}; known are {', '.join(names())}")
    return importlib.import_module(f"{__name__}.{format}").make_decode()


def make_encode(format: str) -> Any:
    """The inline function `encode(src, dst, k)` of a format, for use inside a kernel.

    Raises `BackendError` for a format that has none.
    """
    make = format in names() and getattr(importlib.import_module(f"{__name__}.{format}"), "make_encode", None)
    if not make:
        raise BackendError(f"kernels cannot encode the format {format!r}")
    return make()
