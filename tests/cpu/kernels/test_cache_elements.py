"""What register tiles read of each type of cache, vector by vector: the bits of the format's decoder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import llvmlite.ir as ir
import numpy as np
import pytest
from graphml_cpu.compiler import Address, Int, KernelRef, compile_kernels
from graphml_cpu.frontend import types
from graphml_cpu.frontend.operation import operation
from graphml_cpu.kernels.attention.cache_elements import make_elements
from graphml_cpu.simd import WIDTH, build

from graphml.ir.cache_types import CACHE_DTYPES
from tests.cpu.kernels.attention_reference import recall, store
from tests.cpu.kernels.running import run

ELEMENTS = 96


def make_read(dtype: str) -> Callable[..., None]:
    """A kernel that reads ELEMENTS of a row as float32."""
    elements = make_elements(dtype, WIDTH)

    @operation
    def read_row(row: Any, out: Any) -> Any:
        def emit(builder: ir.IRBuilder, *args: Any) -> None:
            for number in range(ELEMENTS // WIDTH):
                vector = elements.load_at(builder, args[0], number)
                to = builder.add(args[1], build.I64(number * WIDTH * 4))
                builder.store(vector, build.pointer(builder, to, vector.type), align=1)

        return types.none(types.int64, types.int64), emit

    def read(ith: Int, nth: Int, row: Address, out: Address) -> None:
        read_row(row, out)

    return read


@pytest.mark.parametrize("dtype", CACHE_DTYPES)
def test_vectors_have_the_bits_of_the_decoder(dtype: str) -> None:
    made = compile_kernels([KernelRef(f"read-{dtype}", __name__, "make_read", (dtype,))])[f"read-{dtype}"]
    random = np.random.default_rng(3)
    values = random.standard_normal((5, ELEMENTS)).astype(np.float32)
    for row in store(values, dtype):
        out = np.zeros(ELEMENTS, np.float32)
        run(made, row=row, out=out)
        wanted = recall(row, dtype).astype(np.float32)
        np.testing.assert_array_equal(out.view(np.uint32), wanted.view(np.uint32))
