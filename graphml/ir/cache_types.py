"""Element types that keys and values may be kept in, and how a pair of them is written.

`q8_0` means both, `q8_0/q4_0` the keys and the values. Rows of block formats are kept as their Walsh-Hadamard
transforms; `q8_0-plain` are not. Knows names; nothing of caches.
"""

from __future__ import annotations

from graphml.errors import UsageError
from graphml.ir.dtype import DType, dtype

_BLOCKS = ("q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
CACHE_DTYPES = ("f16", "f32", "bf16", *_BLOCKS)
"""Those of llama.cpp. Each has an encoder in `graphml_quant`."""
PLAIN = "-plain"
CACHE_NAMES = (*CACHE_DTYPES, *(name + PLAIN for name in _BLOCKS))
"""Those, and those of blocks without a transform."""


def read_cache_types(name: str, value: object) -> str:
    """The shortest way to write `value`, types of the option `name`; UsageError if they are none."""
    keys, slash, values = value.partition("/") if isinstance(value, str) else ("", "", "")
    if keys not in CACHE_NAMES or (slash and values not in CACHE_NAMES):
        plain = f" ({PLAIN} is for {', '.join(_BLOCKS)})" if PLAIN in str(value) else ""
        wanted = f"{', '.join(CACHE_DTYPES)}, or two as KEYS/VALUES"
        raise UsageError(f"{name}: wanted one of {wanted}; got {value!r}{plain}")
    return keys if values in ("", keys) else f"{keys}/{values}"


def cache_types(written: str) -> tuple[DType, DType]:
    """The types of keys and of values; UsageError if they are none."""
    keys, values = _both(written)
    return dtype(keys.removesuffix(PLAIN)), dtype(values.removesuffix(PLAIN))


def transformed(written: str) -> tuple[bool, bool]:
    """Whether keys and whether values are kept as their Hadamard transforms."""
    keys, values = _both(written)
    return _is_transformed(keys), _is_transformed(values)


def cache_form(written: str) -> str:
    """What is equal for caches that are kept alike, in this and in earlier versions, and for no others."""
    keys, values = (
        f"{name}+hadamard" if _is_transformed(name) else name.removesuffix(PLAIN) for name in _both(written)
    )
    return keys if keys == values else f"{keys}/{values}"


def _both(written: str) -> tuple[str, str]:
    keys, _, values = read_cache_types("kv", written).partition("/")
    return keys, values or keys


def _is_transformed(name: str) -> bool:
    return name in _BLOCKS
