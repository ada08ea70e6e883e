"""Quantisation formats of GGUF files: their block layouts, decoders and encoders, one file each.

A format is a module of this package with one module-level `Format`; `formats()` finds them, so a new format
is one new file. Needs NumPy alone and knows nothing of files, graphs or backends.
"""

import functools
import importlib
import pkgutil
from collections.abc import Mapping
from itertools import pairwise
from types import MappingProxyType

from graphml_quant.format import Format, FormatError, dequantize, quantize

__all__ = ["Format", "FormatError", "by_ggml_type", "by_name", "dequantize", "formats", "quantize"]


@functools.cache
def formats() -> Mapping[str, Format]:
    """Return all formats by name, in the order of their ggml numbers.

    FormatError if two different formats share a name or a number.
    """
    registered: dict[str, Format] = {}
    for entry in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{entry.name}")
        for value in vars(module).values():
            if isinstance(value, Format) and registered.setdefault(value.name, value) is not value:
                raise FormatError(f"two formats are named {value.name}; the second is in {module.__name__}")
    in_order = sorted(registered.values(), key=lambda format: format.ggml_type)
    for before, after in pairwise(in_order):
        if before.ggml_type == after.ggml_type:
            raise FormatError(f"{before.name} and {after.name} share the ggml type {after.ggml_type}")
    return MappingProxyType({format.name: format for format in in_order})


@functools.cache
def _by_ggml_type() -> Mapping[int, Format]:
    return {format.ggml_type: format for format in formats().values()}


def by_name(name: str) -> Format:
    """Return the format of a name in lower case ("q8_0"); FormatError listing the known if there is none."""
    try:
        return formats()[name]
    except KeyError:
        raise FormatError(f"no format is named {name!r}; known are {', '.join(formats())}") from None


def by_ggml_type(ggml_type: int) -> Format:
    """Return the format of a number in a GGUF file; FormatError listing the known if there is none."""
    try:
        return _by_ggml_type()[ggml_type]
    except KeyError:
        known = ", ".join(f"{format.ggml_type} ({format.name})" for format in formats().values())
        raise FormatError(f"no format has the ggml type {ggml_type}; known are {known}") from None
