"""Rows and elements by index: embeddings, output rows, cache writes, routing."""

from __future__ import annotations

from graphml.ir.node import Node
from graphml.ir.op import integer
from graphml.ir.shape import bounds, max_elements
from graphml.ir.state_order import state_of
from graphml_cpu.compiler import KernelRef
from graphml_cpu.layouts import LONG_ROW, row_blocks
from graphml_cpu.lowering.step import (
    Argument,
    CpuLowering,
    CpuWorkspace,
    KernelCall,
    cache_type,
    decodable,
    four_bytes,
    leading,
    one_step,
    row_bytes,
    rows,
    width,
)

_GET_ROWS = "graphml_cpu.kernels.indexing.get_rows"
_TOP_K = "graphml_cpu.kernels.indexing.top_k"


def _refuses_get_rows(node: Node) -> str | None:
    return decodable(node.inputs[0])


def _lower_get_rows(node: Node, threads: int) -> list[KernelCall]:
    table, indices = node.inputs
    kind = table.dtype.name
    row = bounds(table.shape)[1:]
    # A row of several dimensions is one row of as many elements: its blocks lie side by side.
    k = max_elements(row)
    ref = KernelRef(f"get_rows-{kind}", _GET_ROWS, "make_get_rows", (kind,))
    if state_of(table) is not None:
        ref = KernelRef(f"get_cells-{kind}", _GET_ROWS, "make_get_cells", (kind,))
    return one_step(
        ref, table=table, indices=indices, out=node, k=k, row_bytes=table.dtype.bytes_for(k),
        n_table_rows=rows(table.shape[:1]), out_stride=4 * k, rows=rows(indices.shape),
    )  # fmt: skip


def _lower_set_rows(node: Node, threads: int) -> list[KernelCall]:
    state, x, cells = node.inputs
    n = max_elements((1, *x.shape[1:]))
    named, form = write_form(node)
    ref = KernelRef(
        f"cache_write-{named}", "graphml_cpu.kernels.attention.cache_write", "make_cache_write", form
    )
    return one_step(
        ref, ("cache",), x=x, cells=cells, cache=node, n=n, x_stride=4 * n,
        n_cells=rows(state.shape[:1]), rows=rows(x.shape[:1]),
    )  # fmt: skip


def write_form(node: Node) -> tuple[str, tuple[str, bool]]:
    """What kernels that write cells are made for, in their name and as arguments of their factory.

    That is the dtype of the cache, and whether equal cells are looked for: of one row there are none.
    """
    kind, x = node.dtype.name, node.inputs[1]
    looks = not node.attributes.get("distinct", False) and bounds(x.shape)[0] > 1
    return (f"{kind}-equal" if looks else kind), (kind, looks)


def _refuses_set_rows(node: Node) -> str | None:
    state = node.inputs[0]
    return cache_type(state) if bounds(node.shape)[1:] else f"{state.name} has no rows"


def _long_choice(node: Node) -> bool:
    # Of fewer blocks than twice as many as are wanted, too many would have to be read again.
    n = width(node.inputs[0])
    return n >= LONG_ROW and 2 * width(node) <= row_blocks(n)


def _choice_workspace(node: Node, threads: int) -> int:
    x = node.inputs[0]
    return max_elements(x.shape[:-1]) * row_blocks(width(x)) * 4 if _long_choice(node) else 0


def _lower_top_k(node: Node, threads: int) -> list[KernelCall]:
    x = node.inputs[0]
    source: dict[str, Argument] = {"x": x, "n": width(x), "x_stride": row_bytes(x), "rows": leading(x)}
    result: dict[str, Argument] = {"out": node, "k": width(node)}
    if not _long_choice(node):
        return [KernelCall(KernelRef("top_k", _TOP_K, "make_top_k"), source | result)]
    maxima: dict[str, Argument] = {"maxima": CpuWorkspace(node)}
    return [
        KernelCall(
            KernelRef("block_maxima", _TOP_K, "make_block_maxima"), source | maxima, writes=("maxima",)
        ),
        KernelCall(KernelRef("top_k_of_blocks", _TOP_K, "make_top_k_of_blocks"), source | maxima | result),
    ]


def _lower_gather(node: Node, threads: int) -> list[KernelCall]:
    x, ids = node.inputs
    ref = KernelRef("gather", _TOP_K, "make_gather")
    return one_step(
        ref, x=x, ids=ids, out=node, n=width(x), k=width(node), x_stride=row_bytes(x), rows=leading(x)
    )


def _lower_top_k_groups(node: Node, threads: int) -> list[KernelCall]:
    x, groups = node.inputs[0], integer(node.attributes, "n_group")
    ref = KernelRef("top_k_groups", _TOP_K, "make_top_k_groups")
    return one_step(
        ref, x=x, out=node, n_group=groups, size=width(x) // groups,
        n_used=integer(node.attributes, "n_group_used"), rows=leading(x),
    )  # fmt: skip


def _lower_column_numbers(node: Node, threads: int) -> list[KernelCall]:
    ref = KernelRef("column_numbers", _TOP_K, "make_column_numbers")
    return one_step(ref, out=node, n=width(node), each=integer(node.attributes, "each"), rows=leading(node))


GET_ROWS = CpuLowering(("get_rows",), _lower_get_rows, refuses=_refuses_get_rows)
SET_ROWS = CpuLowering(("set_rows",), _lower_set_rows, refuses=_refuses_set_rows)
TOP_K = CpuLowering(
    ("top_k",),
    _lower_top_k,
    workspace=_choice_workspace,
    replicable=True,
    shared=_long_choice,
)
GATHER = CpuLowering(("gather",), _lower_gather, refuses=four_bytes, replicable=True)
TOP_K_GROUPS = CpuLowering(("top_k_groups",), _lower_top_k_groups, replicable=True)
COLUMN_NUMBERS = CpuLowering(("column_numbers",), _lower_column_numbers, replicable=True)
