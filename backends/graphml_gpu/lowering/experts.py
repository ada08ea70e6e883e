"""Products with the matrices of chosen experts."""

from __future__ import annotations

from graphml.ir.node import Node
from graphml.ir.shape import Symbol, bounds
from graphml_gpu.dispatch import (
    MOST_GROUPS,
    Argument,
    Count,
    DeviceView,
    Dispatch,
    GpuLowering,
    GpuWorkspace,
    Scalar,
    rows,
)
from graphml_gpu.kernels.experts.expert_products import MAT_MUL_ID, MAT_VEC_ID, expert_tiles
from graphml_gpu.lowering.products import (
    grid,
    layout,
    not_f32,
    parameters,
    readable,
    rows_per_group,
    slabs,
    table_of,
)
from graphml_gpu.tuning import FEW, is_processor

_TILES = {"GROUP": 64, "ACROSS": 8, "TILE_ROWS": 32, "TILE_COLUMNS": 32, "UNITS": 2}
_MOST_EXPERTS = 4095  # they and those that there are not are counted in the 16 KiB that every device shares


def _refuses(node: Node) -> str | None:
    weight, x, ids = node.inputs
    if isinstance(weight.shape[0], Symbol):
        return f"{weight.name} has a symbolic number of experts"
    if bounds(weight.shape)[0] > _MOST_EXPERTS:
        return f"{weight.name} has more than {_MOST_EXPERTS} experts"
    if rows(ids.shape).bound > MOST_GROUPS:
        return f"{ids.name} has more than {MOST_GROUPS} choices"
    return readable(weight) or not_f32(x)


def _many(node: Node) -> bool:
    """Whether there may be more tokens than the kernels for few take."""
    return rows(node.inputs[2].shape[:-1]).bound > FEW


def _most_tiles(node: Node) -> int:
    pairs, experts = rows(node.inputs[2].shape).bound, bounds(node.inputs[0].shape)[0]
    return min(pairs, pairs // _TILES["TILE_COLUMNS"] + experts + 1)


def _workspace(node: Node) -> int:
    if not _many(node):
        return 0
    return 4 * (rows(node.inputs[2].shape).bound + 3 * _most_tiles(node))


def _lower(node: Node, context: DeviceView) -> list[Dispatch]:
    weight, x, ids = node.inputs
    experts, n, k = bounds(weight.shape)
    pairs, used = rows(ids.shape), bounds(ids.shape)[1]
    buffers: dict[str, Argument] = {"table": table_of(weight), "x": x, "y": node}
    scalars: dict[str, Scalar] = {"n": n, "k": k, "per_x": used if len(x.shape) == 2 else 1}
    scalars["experts"] = experts
    if _many(node) and not is_processor(context.facts):
        return _by_tiles(node, context, buffers, scalars)
    way = parameters(context, weight, x, Count(1))
    del way["COLUMNS"]
    return [
        Dispatch(
            MAT_VEC_ID[k % 4 == 0],
            {**layout(weight), **way},
            {**buffers, "w": slab.argument, "ids": ids},
            {**scalars, "pairs": pairs, "first": slab.first, "count": slab.count},
            grid(-(-n // rows_per_group(way)), pairs, 1),
        )
        for slab in slabs(weight, context)
    ]


def _by_tiles(
    node: Node, context: DeviceView, buffers: dict[str, Argument], scalars: dict[str, Scalar]
) -> list[Dispatch]:
    """First which pairs are whose; then the tiles, of which the last may be of nobody."""
    weight, _, ids = node.inputs
    experts, n, k = bounds(weight.shape)
    pairs, tiles, tile = rows(ids.shape), _most_tiles(node), _TILES["TILE_COLUMNS"]
    dispatches = [
        Dispatch(
            expert_tiles,
            {"EXPERTS": experts, "TILE": tile, "GROUP": min(256, context.facts.max_group)},
            {"ids": ids, "plan": GpuWorkspace(node)},
            {"pairs": pairs, "most_pairs": pairs.bound, "tiles": tiles},
            (1, 1, 1),
        )
    ]
    across = -(-n // _TILES["TILE_ROWS"])
    for slab in slabs(weight, context):
        dispatches.append(
            Dispatch(
                MAT_MUL_ID[k % 4 == 0],
                {**layout(weight), **_TILES, "EVEN": k % 16 == 0},
                {**buffers, "w": slab.argument, "plan": GpuWorkspace(node)},
                {**scalars, "most_pairs": pairs.bound, "first": slab.first, "count": slab.count},
                lambda dims: (across, min(pairs(dims), pairs(dims) // tile + experts + 1), 1),
            )
        )
    return dispatches


EXPERTS = GpuLowering(("linear_id", "mul_mat_id"), _lower, refuses=_refuses, workspace=_workspace)
