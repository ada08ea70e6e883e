"""Element types that keys and values may be kept in, and how a pair of them is written.

`q8_0` means both, `q8_0/q4_0` the keys and the values. Knows names; nothing of caches.
"""

from __future__ import annotations

from graphml.errors import UsageError
from graphml.ir.dtype import DType, dtype

CACHE_DTYPES = ("f16", "f32", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
"""Those of llama.cpp. Each has an encoder in `graphml_quant`."""


def read_cache_types(name: str, value: object) -> str:
    """The shortest way to write `value`, types of the option `name`; UsageError if they are none."""
    keys, slash, values = value.partition("/") if isinstance(value, str) else ("", "", "")
    if keys not in CACHE_DTYPES or (slash and values not in CACHE_DTYPES):
        raise UsageError(
            f"{name}: wanted one of {', '.join(CACHE_DTYPES)}, or two as KEYS/VALUES; got {value!r}"
        )
    return keys if values in ("", keys) else f"{keys}/{values}"


def cache_types(written: str) -> tuple[DType, DType]:
    """The types of keys and of values; UsageError if they are none."""
    keys, _, values = read_cache_types("kv", written).partition("/")
    return dtype(keys), dtype(values or keys)
