"""The types of caches that kernels know: of each how it is bound, stored and read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from graphml_gpu.kernels.attention import cache_loads as loads
from graphml_gpu.kernels.attention import cache_stores as stores
from graphml_gpu.kernels.formats._words import unpack_bf16, unpack_f16


@dataclass(frozen=True)
class CacheType:
    """How kernels deal with one dtype of caches.

    unit: elements that `store` writes at once. vector: words of four elements where rows are a multiple of
    that; load, uneven: of such rows and of others (None: there are none). unpack: four elements of two words,
    of a type of halves.
    """

    unit: int
    store: stores.CacheStore
    vector: str
    load: loads.CacheLoad
    uneven: loads.CacheLoad | None = None
    unpack: Callable[..., Any] | None = None


CACHE_TYPES = {
    "f32": CacheType(1, stores.store_f32, "f32x4", loads.load_f32, loads.load_f32_uneven),
    "f16": CacheType(2, stores.store_f16, "u32x2", loads.load_f16, loads.load_f16_uneven, unpack_f16),
    "bf16": CacheType(2, stores.store_bf16, "u32x2", loads.load_bf16, loads.load_bf16_uneven, unpack_bf16),
    "q8_0": CacheType(64, stores.store_q8_0, "u32", loads.load_q8_0),
    "q5_1": CacheType(32, stores.store_q5_1, "u32", loads.load_q5_1),
    "q5_0": CacheType(64, stores.store_q5_0, "u32", loads.load_q5_0),
    "q4_1": CacheType(32, stores.store_q4_1, "u32", loads.load_q4_1),
    "q4_0": CacheType(64, stores.store_q4_0, "u32", loads.load_q4_0),
    "iq4_nl": CacheType(64, stores.store_iq4_nl, "u32", loads.load_iq4_nl),
}
