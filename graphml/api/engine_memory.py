"""How many blocks an engine has: from bytes, or a share of the memory that is free.

Knows sizes; nothing of requests.
"""

from __future__ import annotations

import math

from graphml.backend import MemoryDevice
from graphml.errors import UsageError
from graphml.runtime.executor import Executor
from graphml.runtime.memory_needed import free_memory, state_bytes
from graphml.runtime.paged_cache import BLOCK_SIZE, MAX_CELLS

DEFAULT_SHARE = 0.5


def n_blocks_for(executor: Executor, kv_memory: float | None, max_sequences: int, n_ctx: int) -> int:
    """Blocks in so much memory, at most those that all sequences can fill.

    kv_memory: bytes (a whole number), or a share of what is free (a fraction up to 1.0), on a device with
    memory of its own of what the weights leave; None: half of it.
    UsageError where not even one sequence of two blocks fits.
    """
    cells = dict.fromkeys(("C", *(group.symbol for group in executor.cell_groups)), BLOCK_SIZE)
    fixed = state_bytes(executor, {"S": max_sequences, **dict.fromkeys(cells, 0)})
    block_bytes = state_bytes(executor, {"S": max_sequences, **cells}) - fixed
    most = min(max_sequences * -(-n_ctx // BLOCK_SIZE), MAX_CELLS // BLOCK_SIZE)
    given = _bytes(kv_memory, executor)
    count = most if not block_bytes else min(most, max(0, given - fixed) // block_bytes)
    if count < min(2, most):
        raise UsageError(
            f"kv_memory: wanted room for two blocks of {BLOCK_SIZE} tokens beside the states of "
            f"{max_sequences} sequences, {fixed + 2 * block_bytes:,} bytes; got {given:,}"
        )
    return int(count)


def _bytes(kv_memory: float | None, executor: Executor) -> int:
    share = DEFAULT_SHARE if kv_memory is None else kv_memory
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share < math.inf:
        raise UsageError(
            f"kv_memory: wanted bytes, or a share of the free memory up to 1.0; got {kv_memory!r}"
        )
    if isinstance(share, int) or share > 1:
        return int(share)
    device = executor.device
    room = device.memory_bytes if isinstance(device, MemoryDevice) else None
    free = free_memory() if room is None else max(0, room - executor.file.n_weight_bytes)
    return int(share * free)
