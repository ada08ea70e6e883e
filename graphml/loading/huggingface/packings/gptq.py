"""GPTQ of 2, 3, 4 and 8 bits, as AutoGPTQ's `qlinear_cuda` and GPTQModel store it.

qweight [in * bits / 32, out] holds numbers along inputs, those of 3 bits also across words; qzeros
[groups, out * bits / 32] zeros along outputs, of the first format less 1; g_idx [in] is the group of each
input where they are in the order of their activations (`desc_act`).
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from graphml.loading.huggingface.module_patterns import NamePatterns, Pattern
from graphml.loading.huggingface.packings._integers import WORD, bit_numbers, grouped, in_order
from graphml.loading.huggingface.packings._layout import Layout, Packing, PackingFields
from graphml.loading.huggingface.packings._parts import StoredParts
from graphml.weights import Tensor

BITS = (2, 3, 4, 8)
FORMATS = ("gptq", "gptq_v2")


class _Gptq(NamedTuple):
    """group: 0 for all inputs; first: zeros are stored less 1; symmetric: all zeros are the middle."""

    bits: int
    group: int
    first: bool
    symmetric: bool
    ordered: bool


def read(fields: PackingFields) -> Layout:
    """The layout of a config."""
    stated = fields.text("checkpoint_format", "format", default="gptq")
    if stated not in FORMATS or fields.get("is_marlin_format"):
        got = "is_marlin_format" if stated in FORMATS else stated
        raise fields.error(f"checkpoint_format: wanted {' or '.join(FORMATS)}; got {got!r}")
    first = stated == "gptq"
    unpack = partial(_unpack, _method(fields, first), _of_modules(fields, first))
    return Layout((".qweight", ".qzeros", ".scales", ".g_idx"), unpack, whole=".weight")


def _method(fields: PackingFields, first: bool) -> _Gptq:
    """How all modules are packed, or single ones; first: in the first format."""
    return _Gptq(
        bits=fields.whole("bits", "w_bit", default=4, allowed=BITS),
        group=fields.group_size("group_size", "q_group_size"),
        first=first,
        symmetric=first and fields.flag("sym"),
        ordered=fields.flag("desc_act") and not fields.flag("static_groups"),
    )


def _of_modules(fields: PackingFields, first: bool) -> list[tuple[Pattern, _Gptq | None]]:
    """The patterns of `dynamic` in order, with how their modules are packed; None: they are not."""
    patterns = NamePatterns(fields.path)
    of_modules: list[tuple[Pattern, _Gptq | None]] = []
    for text, own in fields.table("dynamic").items():
        place = f"dynamic.{text[:80]}"
        if not isinstance(own, dict | None):
            raise fields.error(f"{place}: wanted an object; got {str(own)[:60]!r}")
        method = _method(PackingFields(fields.path, {**fields.values, **(own or {})}), first)
        try:
            pattern = patterns.beginning(text[2:] if text[:2] in ("+:", "-:") else text)
        except ValueError as error:
            raise fields.error(f"{place}: wanted a regular expression; got {error}") from error
        of_modules.append((pattern, None if text.startswith("-:") else method))
    return of_modules


def _unpack(method: _Gptq, of_modules: list[tuple[Pattern, _Gptq | None]], parts: StoredParts) -> Tensor:
    module = parts.name.removesuffix(".weight")
    for pattern, stated in of_modules:
        if pattern.matches(module):
            if stated is None:
                raise parts.error("is packed, but dynamic of quantization_config leaves it out")
            method = stated
            break
    bits = method.bits
    qweight = parts.part(".qweight", ("I32",), (None, None))
    n_in, n_out = qweight.shape[0] * WORD // bits, qweight.shape[1]
    if qweight.shape[0] * WORD % bits or n_out * bits % WORD:
        wanted = f"whole words of numbers of {bits} bits along inputs and outputs"
        raise parts.wrong(".qweight", wanted, list(qweight.shape))
    group = method.group or n_in
    n_group = -(-n_in // group)
    scales = parts.scales(".scales", (n_group, n_out))
    words = parts.whole_numbers(".qzeros", ("I32",), (n_group, n_out * bits // WORD))
    zeros = _zeros(parts, method, bit_numbers(words, bits))
    groups = np.arange(n_in) // group
    if ".g_idx" in parts or method.ordered:
        groups = in_order(parts, ".g_idx", n_in, n_group)

    def numbers() -> NDArray[np.uint8]:
        return bit_numbers(np.ascontiguousarray(parts.whole_numbers(".qweight", ("I32",)).T), bits)

    extremes = (0, (1 << bits) - 1)
    return grouped(parts, numbers, extremes, zeros.T, np.ascontiguousarray(scales.T), groups)


def _zeros(parts: StoredParts, method: _Gptq, stored: NDArray[np.uint8]) -> NDArray[np.int16]:
    """The zeros [groups, out]; the first format has the largest number for a zero of 0."""
    half, mask = 1 << (method.bits - 1), np.int16((1 << method.bits) - 1)
    zeros = stored.astype(np.int16)
    if method.symmetric and bool((zeros == half).all()):  # the second format, under the name of the first
        return zeros
    zeros = (zeros + np.int16(method.first)) & mask
    if method.symmetric and not bool((zeros == half).all()):
        got = sorted(set(zeros.reshape(-1).tolist()))[:8]
        raise parts.wrong(".qzeros", f"zeros of {half}, as quantization_config has sym = true", got)
    return zeros


PACKING = Packing(("gptq",), read)
