"""Element types of caches and tables: loading and storing vectors of float32 as f32, f16 or bf16.

Knows one vector at an address; knows no kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from graphml.errors import BackendError
from graphml_cpu.frontend import inline
from graphml_cpu.kernels.share import Vector
from graphml_cpu.simd import (
    WIDTH,
    bf16_to_f32,
    bitcast,
    convert,
    f32_to_bf16,
    load,
    load_partial,
    store,
    store_partial,
    vector,
)

ITEM_BYTES = {"f32": 4, "f16": 2, "bf16": 2}


@dataclass(frozen=True)
class Storage:
    """How `lanes` elements of `dtype` are read and written as a float32 vector; rounding is to nearest even.

    `load(address)`, `load_partial(address, count)`, `store(address, v)`, `store_partial(address, v, count)`:
    inline functions; the partial forms touch no memory past `count` elements.
    """

    dtype: str
    item_bytes: int
    load: Any
    load_partial: Any
    store: Any
    store_partial: Any


def make_storage(dtype: str, lanes: int = WIDTH) -> Storage:
    """The storage of `dtype` "f32", "f16" or "bf16" for vectors of `lanes`; another raises `BackendError`."""
    if dtype not in ITEM_BYTES:
        raise BackendError(f"kernels store f32, f16 and bf16; got {dtype!r}")
    single = vector("f32", lanes)
    stored = vector({"f32": "f32", "f16": "f16", "bf16": "u16"}[dtype], lanes)
    # Halves are moved as integers: every processor can mask those.
    moved = vector("f32" if dtype == "f32" else "u16", lanes)
    widen, narrow = _conversions(dtype, single, stored, moved)

    @inline
    def load_all(address: int) -> Vector:
        return widen(load(moved, address))

    @inline
    def load_some(address: int, count: int) -> Vector:
        return widen(load_partial(moved, address, count))

    @inline
    def store_all(address: int, value: Vector) -> None:
        store(address, narrow(value))

    @inline
    def store_some(address: int, value: Vector, count: int) -> None:
        store_partial(address, narrow(value), count)

    return Storage(dtype, ITEM_BYTES[dtype], load_all, load_some, store_all, store_some)


def _conversions(dtype: str, single: Any, stored: Any, moved: Any) -> tuple[Any, Any]:
    """(what is moved -> float32, float32 -> what is moved)."""
    if dtype == "bf16":
        return bf16_to_f32, f32_to_bf16

    @inline
    def keep(value: Vector) -> Vector:
        return value

    @inline
    def from_half(bits: Vector) -> Vector:
        return convert(single, bitcast(stored, bits))

    @inline
    def to_half(value: Vector) -> Vector:
        return bitcast(moved, convert(stored, value))

    return (keep, keep) if dtype == "f32" else (from_half, to_half)
