"""Arrays -> blocks of a weight format, and back: `graphml.quantize` and `graphml.dequantize`.

Encoders are compiled by a backend, which is looked for by name when the first is called. Knows arrays and
formats; no files and no models.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import graphml_quant
import numpy as np
from graphml_quant import Format, FormatError
from graphml_quant.format import RawBytes
from numpy.typing import ArrayLike, NDArray

from graphml.backend import WeightEncoder
from graphml.errors import BackendError, UsageError, did_you_mean
from graphml.loading import discovery
from graphml.options.argument_checks import whole_number

ENCODING_BACKEND = "cpu"
_NEAR_ONE = 20
"""Importance whose largest is within so many powers of two of 1 is used as it is."""
INFINITE_FROM = {"f32": 3.4028235677973366e38, "f16": 65520.0, "bf16": 3.3961776e38}
"""Magnitudes from which on a type without blocks makes a number infinite."""
_OF_ACTIVATIONS = ("q8_1", "q8_k")
_OF_CACHES = ("iq4_nl",)
"""Formats whose encoder in NumPy, that of caches, searches less than the one of files."""


def quantize(
    x: ArrayLike, type: str, importance: ArrayLike | None = None, *, threads: int | None = None
) -> NDArray[np.uint8]:
    """The blocks of x, floats [..., columns], as a GGUF file holds them: uint8 [..., bytes of a row].

    type: as ggml names it, "Q4_K". importance, [columns]: the weight of each column's squared errors; on
    formats that search nothing, such as Q8_0, it has no influence. The bytes do not depend on the number of
    threads. UsageError for rows that are no whole blocks, for values that are not finite (but in F32, F16
    and BF16) or beyond the type or a block's scale, and for IQ2_XXS, IQ2_XS and IQ1_S without importance.
    """
    format, count = _format(type), whole_number(threads)
    if threads is not None and (count is None or count < 1):
        raise UsageError(f"threads: wanted a whole number from 1, or None for all cores; got {threads!r}")
    values = _values(format, x)
    weights = None if importance is None else _importance(importance, values.shape[-1])
    if weights is None and format.importance == "needed":
        raise UsageError(f"{type}: wanted importance [columns], without which ggml has no such blocks either")
    encoder, why = _encoder(format)
    if encoder is not None:
        *outer, columns = values.shape
        rows = values.reshape(math.prod(outer), columns)
        out = np.empty((len(rows), format.bytes_for(columns)), np.uint8)
        if not encoder(rows, weights if format.importance != "unused" else None, out, count):
            raise UsageError(_flaw(format, values))
        return out.reshape(*outer, out.shape[1])
    is_weighted = weights is not None and format.importance != "unused"
    if format.encode is None or is_weighted or format.name in _OF_CACHES:
        raise UsageError(f"{type}: the backend {ENCODING_BACKEND!r} alone encodes it: {why}")
    try:
        return graphml_quant.quantize(format, values)
    except FormatError as error:
        raise UsageError(str(error)) from None


def dequantize(blocks: RawBytes, type: str, shape: Sequence[int]) -> NDArray[np.float32]:
    """The values, float32 of NumPy shape `shape`, of blocks: bytes, or uint8 as `quantize` returns it.

    UsageError for another number of bytes than the shape's.
    """
    if isinstance(shape, str) or not isinstance(shape, Sequence):
        raise UsageError(f"shape: wanted whole numbers, such as (rows, columns); got {shape!r:.80}")
    try:
        return graphml_quant.dequantize(_format(type), blocks, shape)
    except FormatError as error:
        raise UsageError(str(error)) from None


def formats_of_files() -> tuple[str, ...]:
    """The formats that files keep weights in, by `graphml_quant`'s names."""
    return tuple(name for name in graphml_quant.formats() if name not in _OF_ACTIVATIONS)


def _format(name: str) -> Format:
    known = [known.upper() for known in formats_of_files()]
    if not isinstance(name, str) or name.upper() not in known:
        hint = did_you_mean(name.upper(), known) if isinstance(name, str) else ""
        raise UsageError(f"type: no format of files is named {name!r}; known are {', '.join(known)}.{hint}")
    return graphml_quant.by_name(name.lower())


def _values(format: Format, x: ArrayLike) -> NDArray[np.float32]:
    array = np.asarray(x)
    if array.ndim == 0 or not np.issubdtype(array.dtype, np.floating):
        raise UsageError(f"x: wanted floats [..., columns]; got {array.dtype} {list(array.shape)}")
    try:
        format.bytes_for(array.shape[-1])
    except FormatError as error:
        raise UsageError(f"x: {error}") from None
    limit = INFINITE_FROM.get(format.name, math.inf)
    if float(np.finfo(array.dtype).max) >= limit:
        beyond = (np.abs(array) >= limit) & np.isfinite(array)
        if beyond.any():
            place = tuple(int(index) for index in np.argwhere(beyond)[0])
            raise UsageError(
                f"x: {format.name.upper()} wants numbers below {limit:.6g}; that at {place} is {array[place]}"
            )
    with np.errstate(over="ignore"):  # infinities are refused, with their place
        return np.ascontiguousarray(array, np.float32)


def _importance(importance: ArrayLike, columns: int) -> NDArray[np.float32]:
    """As float32; far from 1 times a power of two, so that no sum of a search overflows or vanishes."""
    array = np.asarray(importance)
    if array.shape != (columns,) or array.dtype.kind not in "fiu":
        shape = list(array.shape)
        raise UsageError(f"importance: wanted numbers [{columns}], one a column; got {array.dtype} {shape}")
    weights = np.ascontiguousarray(array, np.float64)
    fit = np.isfinite(weights) & (weights >= 0)
    if not fit.all():
        column = int(np.argmin(fit))
        raise UsageError(
            f"importance: wanted finite numbers from 0; got {weights[column]} in column {column}"
        )
    exponent = int(np.frexp(weights.max(initial=0))[1])
    return np.ldexp(weights, 0 if abs(exponent) <= _NEAR_ONE else -exponent).astype(np.float32)


def _encoder(format: Format) -> tuple[WeightEncoder | None, str]:
    """The compiled encoder of a format, or why there is none."""
    try:
        backend = discovery.backend(ENCODING_BACKEND)
    except BackendError as error:
        return None, str(error)
    why = backend.unavailable()
    encoder = None if why else backend.encoder(format.name)
    return encoder, why or "it has no encoder of this format yet"


def _flaw(format: Format, values: NDArray[np.float32]) -> str:
    """What is wrong with values that no block can hold: the first that is not finite, else the largest."""
    finite = np.isfinite(values)
    is_finite = bool(finite.all())
    flat = int(np.argmax(np.abs(values)) if is_finite else np.argmin(finite))
    place = tuple(int(index) for index in np.unravel_index(flat, values.shape))
    wanted = "values whose scale is within float16" if is_finite else "finite values"
    return f"x: {format.name.upper()} wants {wanted}; the value at {place} is {values[place]}"
