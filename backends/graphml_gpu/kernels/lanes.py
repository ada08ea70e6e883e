"""What a device's subgroups are: asked by `graphml_gpu.subgroups` before a kernel relies on them."""

from __future__ import annotations

from graphml_gpu.language import (
    Write,
    kernel,
    local_index,
    subgroup_broadcast,
    subgroup_count,
    subgroup_id,
    subgroup_lane,
    subgroup_max,
    subgroup_size_min,
    subgroup_sum,
    subgroup_xor,
    u32,
    u32x4,
)


@kernel
def lanes(out: Write[u32x4], *, GROUP: int = 64) -> None:
    """Two vectors of each invocation of a workgroup, worked out without shared memory.

    Its subgroup, lane, the number of subgroups and of lanes; who is half of the smallest subgroup further or
    before, the first and the last of its subgroup.
    """
    me = local_index()
    first, last, size = subgroup_broadcast(me, 0), subgroup_max(me), subgroup_sum(u32(1))
    out[2 * me] = u32x4(subgroup_id(), subgroup_lane(), subgroup_count(), size)
    out[2 * me + 1] = u32x4(subgroup_xor(me, subgroup_size_min() // 2), first, last, 0)
