"""Which kernels a node calls, and which loop of a product its number of rows selects: for `graphml explain`.

Knows lowered steps and the model of costs; compiles nothing.
"""

from __future__ import annotations

from graphml.ir.node import Node
from graphml.ir.shape import max_elements
from graphml_cpu.lowering.step import AddressTable, KernelCall
from graphml_cpu.node_support import CpuNodeSupport
from graphml_cpu.packed import FLOATS
from graphml_cpu.product_costs import costs
from graphml_cpu.tuning import CpuTuning


def called_kernels(
    node: Node, support: CpuNodeSupport, threads: int, tuning: CpuTuning, one_order: bool
) -> list[str]:
    """A line for each kernel call of a node: its kernel, and of products with two loops why which one."""
    lowering = support.lowering(node.op)
    if lowering is None or node.op.view or support.refuses(node) is not None:
        return []
    lines = []
    for step in lowering.steps(node, threads, one_order):
        applied = tuning.applied(step, threads)
        lines.append(applied.kernel.name + _choice(step, applied))
    return lines


def _choice(step: KernelCall, applied: KernelCall) -> str:
    """Which loop is called at the most rows that the node has, and what both are estimated at."""
    few, x = applied.arguments.get("few_rows"), step.arguments.get("x")
    if not isinstance(few, int) or not isinstance(x, Node):
        return ""
    rows, n, k = max_elements(x.shape[:-1]), _weight_rows(step), step.arguments["k"]
    kind = step.kernel.name.split("-")[1]
    assert isinstance(k, int)
    if rows == 1:
        return ": by rows, the only loop for one row"
    if dict(step.kernel.calls)["tiles"] is None:
        return f": {rows} rows by rows, the only loop in one order"
    product_costs = costs(kind, kind in FLOATS)
    by_rows, by_panels = (
        cost.of(n, rows) * k / 1e6 for cost in (product_costs.by_rows, product_costs.by_panels)
    )
    chosen = "by rows" if rows <= few else "by panels"
    why = "graphml tune measured it" if few != step.arguments["few_rows"] else "by the model of costs"
    return (
        f": {rows} rows {chosen}; up to {few} by rows, more by panels ({why}); {rows} rows of {n} x {k} take"
        f" one thread {by_rows:.0f} us by rows and {by_panels:.0f} us by panels by that model"
    )


def _weight_rows(step: KernelCall) -> int:
    """Of all weights that a call multiplies."""
    entries, n = step.arguments.get("table"), step.arguments.get("n")
    if isinstance(entries, AddressTable):
        return sum(int(entry[2]) for entry in entries.rows if isinstance(entry[2], int))
    assert isinstance(n, int)
    return 2 * n if "gate" in step.arguments else n
