"""The CPU backend as a value: what it can do, before any thread is started."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from graphml.backend import Backend
from graphml.errors import BackendError
from graphml_cpu import row_order, target
from graphml_cpu.device import SUPPORT, CpuDevice
from graphml_cpu.encoders import encoder
from graphml_cpu.lowering import table
from graphml_cpu.lowering.attention import product_dtype
from graphml_cpu.lowering.linear import activation
from graphml_cpu.processors import physical_cores


def _unavailable() -> str | None:
    try:
        target.current()
    except BackendError as error:
        return str(error)
    return None


def _describe() -> Mapping[str, Any]:
    level = target.current()
    return {
        "instruction set": level.name,
        "vector bytes": level.vector_bytes,
        "dot product instruction": level.has_byte_dot,
        "bfloat16 dot product": level.has_bf16,
        "threads": physical_cores(),
    }


BACKEND = Backend(
    "cpu",
    open=CpuDevice,
    refuses=SUPPORT.refuses,
    fused=frozenset(table()),
    activation=activation,
    product_dtype=product_dtype,
    unavailable=_unavailable,
    describe=_describe,
    row_order=row_order,
    encoder=encoder,
)
