"""Reads memory and does next to nothing with it: what `graphml_gpu.bandwidth` times."""

from __future__ import annotations

from graphml_gpu.language import Read, Write, global_id, group_id, kernel, local_id, u32, u32x4, unroll


@kernel
def read_memory(
    data: Read[u32x4], out: Write[u32], rounds: u32, *, GROUP: int = 256, N_GROUPS: int, N_LOADS: int
) -> None:
    """The sum of the words that each invocation reads. out [N_GROUPS GROUP], data [rounds N_LOADS] of those.

    A workgroup reads N_LOADS neighbouring runs of vectors at once, then goes on behind what the others read.
    """
    total = u32x4(0, 0, 0, 0)
    for i in range(rounds):
        first = (i * N_GROUPS + group_id(0)) * N_LOADS * GROUP + local_id(0)
        for k in unroll(N_LOADS):
            total = total + data[first + k * GROUP]
    out[global_id(0)] = total.x + total.y + total.z + total.w
