"""Rows of plain floats (f32, f16, bf16), of any length. Knows only how one vector of them is loaded."""

from __future__ import annotations

from typing import Any

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.storage import make_storage
from graphml_cpu.simd import WIDTH, store, store_partial


def make_float_decode(dtype: str) -> Any:
    """`decode(src, dst, k)` for "f32", "f16" or "bf16"; k may be any length."""
    storage = make_storage(dtype)
    item_bytes, load_all, load_some = storage.item_bytes, storage.load, storage.load_partial

    @inline
    def decode(src: int, dst: int, k: int) -> None:
        whole = k - k % WIDTH
        for i in range(0, whole, WIDTH):
            store(dst + i * 4, load_all(src + i * item_bytes))
        if whole < k:
            store_partial(dst + whole * 4, load_some(src + whole * item_bytes, k - whole), k - whole)

    return decode
