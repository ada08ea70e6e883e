"""float32 -> float16 and bfloat16, element by element. Infinities and NaN stay what they are."""

from __future__ import annotations

from collections.abc import Callable

from graphml_cpu.compiler import Address, Int
from graphml_cpu.kernels.share import share
from graphml_cpu.kernels.storage import make_storage

_LANES = 32
_PART = 4096  # elements that a thread takes at least


def make_encode_elements(format: str) -> Callable[..., None]:
    """out, n elements of "f16" or "bf16", of x, float32."""
    source, target = make_storage("f32", _LANES), make_storage(format, _LANES)
    load, load_partial, store, store_partial = (
        source.load, source.load_partial, target.store, target.store_partial,
    )  # fmt: skip

    def encode_elements(ith: Int, nth: Int, x: Address, out: Address, n: Int) -> None:
        begin, end = share(ith, nth, (n + _PART - 1) // _PART)
        end = min(end * _PART, n)
        whole = end - (end - begin * _PART) % _LANES
        for i in range(begin * _PART, whole, _LANES):
            store(out + i * 2, load(x + i * 4))
        if whole < end:
            left = end - whole
            store_partial(out + whole * 2, load_partial(x + whole * 4, left), left)

    return encode_elements
