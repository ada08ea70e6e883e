"""Products with weights and the conversion of activations.

Native kernels read F32, F16 and BF16 weights against float32 rows, BF16 weights also against rows packed to
bfloat16, and formats that have a `CpuFormatReader` against rows packed to int8; every other format is decoded
panel by panel.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from graphml.ir.dtype import DType, dtype
from graphml.ir.node import Node
from graphml.ir.op import Type
from graphml.ir.shape import bounds, max_elements
from graphml_cpu import target
from graphml_cpu.compiler import KernelRef
from graphml_cpu.kernels import formats
from graphml_cpu.layouts import panel_scratch_bytes
from graphml_cpu.lowering.step import (
    Argument,
    CpuLowering,
    KernelCall,
    Scratch,
    decodable,
    leading,
    one_step,
    row_bytes,
    width,
)
from graphml_cpu.packed import BF16_PAIRS, LAYOUTS, few_rows, packed_bytes, scratch_bytes

FLOAT_WEIGHTS = frozenset({"f32", "f16", "bf16"})


def activation(weight: DType) -> DType | None:
    """What rows are converted to before they meet weights of a dtype; None: they stay float32.

    bfloat16 meets bfloat16 only where one instruction multiplies them: elsewhere nothing would be gained.
    """
    if weight.name == "bf16":
        return weight if target.current().has_bf16 else None
    return dtype("q8_1") if formats.has_reader(weight.name) else None


def is_packed(kind: DType) -> bool:
    """Whether computed values of a dtype are converted activations, which have a layout of their own."""
    return kind.name in LAYOUTS


def stored_row_bytes(value: Node | Type) -> int:
    """Bytes of one row of a computed value as this backend lays it out."""
    return packed_bytes(width(value)) if is_packed(value.dtype) else row_bytes(value)


def is_native(weight: Node, x: Node) -> bool:
    """Whether rows of x meet the weight as the file stores it, not decoded panel by panel."""
    return weight.dtype.name in FLOAT_WEIGHTS or is_packed(x.dtype)


def product_kind(weight: Node, x: Node) -> str:
    """Which kernels multiply: those of the weight's format, or those of pairs of bfloat16."""
    return BF16_PAIRS if x.dtype.name == "bf16" else weight.dtype.name


def is_one_row(x: Node) -> bool:
    """Whether there is never more than one row of x."""
    return max_elements(x.shape[:-1]) == 1


_MUL_MAT = "graphml_cpu.kernels.products.mul_mat"


@dataclass(frozen=True)
class Loops:
    """Which loops the kernels of products with weights of a kind call.

    one_row: those for one row at most, without tiles. one_order: those whose sums of a row do not depend on
    how many there are: of integers tiles that add up as a few rows are added up, of floats no tiles.
    """

    kind: str
    one_row: bool = False
    one_order: bool = False

    @property
    def calls(self) -> tuple[tuple[str, KernelRef | None], ...]:
        """Slots of a kernel of products, and what they are filled with."""
        kind = self.kind
        few = KernelRef(f"mul_mat_rows-{kind}", _MUL_MAT, "make_mul_mat_rows", (kind,))
        return ("few", few), ("tiles", self._tiles())

    def _tiles(self) -> KernelRef | None:
        kind = self.kind
        if self.one_row:
            return None
        if not self.one_order:
            return KernelRef(f"mul_mat_tiles-{kind}", _MUL_MAT, "make_mul_mat_tiles", (kind,))
        if not formats.has_reader(kind):
            return None
        arguments = (kind, 0, 0, True)
        return KernelRef(f"mul_mat_tiles_ordered-{kind}", _MUL_MAT, "make_mul_mat_tiles", arguments)

    def kernel(self, name: str, factory: str, module: str, *arguments: str) -> KernelRef:
        """The kernel `name`, from a factory that takes these arguments, with its loops."""
        form = "_vec" if self._tiles() is None else "_ordered" if self.one_order else ""
        words = "-".join((name + form, self.kind, *arguments))
        return KernelRef(words, module, factory, arguments, self.calls)


def product_kernel(kind: str, one_row: bool = False, one_order: bool = False) -> KernelRef:
    """The kernel of one product with weights of a kind that is read as the file has it."""
    return Loops(kind, one_row, one_order).kernel("mul_mat", "make_mul_mat", _MUL_MAT)


def refuses_packing(node: Node) -> str | None:
    """Why no kernel converts rows to the layout of the node's value."""
    return None if is_packed(node.dtype) else f"no kernel converts to {node.dtype.name}"


def conversion(layout: str) -> KernelRef:
    """The kernel that packs rows in one of `packed.LAYOUTS`."""
    return KernelRef(
        f"quantize-{layout}", "graphml_cpu.kernels.products.quantize", "make_quantize", (layout,)
    )


def _lower_quantize(node: Node, threads: int) -> list[KernelCall]:
    x = node.inputs[0]
    return one_step(conversion(node.dtype.name), x=x, out=node, k=width(x), rows=leading(x))


def _refuses_linear(node: Node) -> str | None:
    return decodable(node.inputs[0])


def _lower_linear(node: Node, threads: int, one_order: bool = False) -> list[KernelCall]:
    weight, x = node.inputs[:2]
    bias = node.inputs[2] if node.attributes["bias"] else 0
    residual = node.inputs[-1] if node.attributes["residual"] else 0
    return [product(weight, x, node, bias, residual, one_order)]


def panels_kernel(kind: str, one_order: bool) -> KernelRef:
    """The kernel of products of float32 rows with weights that are decoded panel by panel."""
    name = "mul_mat_panels_ordered" if one_order else "mul_mat_panels"
    module = "graphml_cpu.kernels.products.mul_mat_panels"
    return KernelRef(f"{name}-{kind}", module, "make_mul_mat_panels", (kind, one_order))


def product(
    weight: Node, x: Node, y: Argument, bias: Argument = 0, residual: Argument = 0, one_order: bool = False
) -> KernelCall:
    """The kernel call of y = weight @ x (+ bias) (+ residual)."""
    kind = product_kind(weight, x)
    n, k = bounds(weight.shape)
    arguments: dict[str, Argument] = {
        "w": weight,
        "x": x,
        "y": y,
        "residual": residual,
        "bias": bias,
        "n": n,
        "k": k,
        "x_stride": stored_row_bytes(x),
        "y_stride": 4 * n,
        "rows": leading(x),
    }
    if not is_native(weight, x):
        arguments |= {"row_bytes": row_bytes(weight), "scratch": Scratch(panel_scratch_bytes(k))}
        ref = panels_kernel(kind, one_order)
    else:
        arguments["few_rows"] = few_rows(kind, n)
        arguments["scratch"] = Scratch(64 if is_one_row(x) else scratch_bytes(kind, k))
        ref = product_kernel(kind, is_one_row(x), one_order)
    return KernelCall(ref, arguments, writes=("y",))


QUANTIZE = CpuLowering(("quantize",), _lower_quantize, refuses=refuses_packing, replicable=True)
LINEAR = CpuLowering(
    ("linear",), _lower_linear, refuses=_refuses_linear, one_order=partial(_lower_linear, one_order=True)
)
