"""How many blocks and checkpoints an engine has: from bytes, or a share of the memory that is free.

Knows sizes; nothing of requests.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from graphml.backend import MemoryDevice
from graphml.errors import UsageError
from graphml.ir.cells import BLOCK_SIZE, MAX_CELLS
from graphml.runtime.blocks.window_blocks import WindowRoom
from graphml.runtime.programs.executor import Executor
from graphml.runtime.programs.memory_needed import state_bytes
from graphml.runtime.sessions.prediction_head import HEAD_CELLS, head_cell_bytes
from graphml.system.pages import free_memory

DEFAULT_SHARE = 0.5
WINDOW_SHARE = 0.5  # of what is given, unless that is too little for one sequence
CHECKPOINTS = 4  # of recurrent states, for each sequence that can run
CHECKPOINT_SHARE = 0.25  # of what the states of running sequences leave


def n_checkpoints_for(executor: Executor, kv_memory: float | None, max_sequences: int) -> int:
    """Checkpoints of recurrent states in their share of so much memory; 0 for a model without such states."""
    if not executor.recurrent:
        return 0
    sequence_bytes = _of_a_sequence(executor)
    room = CHECKPOINT_SHARE * (_bytes(kv_memory, executor) - max_sequences * sequence_bytes)
    return max(0, min(CHECKPOINTS * max_sequences, int(room / sequence_bytes)))


def _of_a_sequence(executor: Executor) -> int:
    """Bytes of the states of one sequence without any cells."""
    return state_bytes(executor, {"S": 1, "C": 0, **{group.symbol: 0 for group in executor.cell_groups}})


def window_rooms(
    executor: Executor, kv_memory: float | None, max_sequences: int, n_ctx: int
) -> tuple[WindowRoom, ...]:
    """Room for the windows of all sequences, or of as many as fit in their share of so much memory.

    And for as many again, which holds contents for later prefixes.
    """
    groups = executor.cell_groups
    if not groups:
        return ()

    def rooms(count: int) -> tuple[WindowRoom, ...]:
        return tuple(WindowRoom(group, count, n_ctx, executor.n_batch, BLOCK_SIZE) for group in groups)

    def needed(count: int) -> int:
        return sum(room.n_blocks * bytes_of[room.group] for room in rooms(count))

    none = {"S": 1, "C": 0, **dict.fromkeys((group.symbol for group in groups), 0)}
    others = state_bytes(executor, none)
    bytes_of = {group: state_bytes(executor, none | {group.symbol: BLOCK_SIZE}) - others for group in groups}
    share = WINDOW_SHARE * _bytes(kv_memory, executor)
    fitting = [count for count in range(1, 2 * max_sequences + 1) if needed(count) <= share]
    return rooms(max(fitting, default=1))


def _cells(rooms: Iterable[WindowRoom]) -> dict[str, int]:
    return {room.group.symbol: room.n_blocks * BLOCK_SIZE for room in rooms}


def n_blocks_for(
    executor: Executor,
    kv_memory: float | None,
    max_sequences: int,
    n_ctx: int,
    n_checkpoints: int = 0,
    rooms: Iterable[WindowRoom] = (),
) -> int:
    """Blocks in so much memory beside checkpoints and windows, at most those that all sequences can fill.

    kv_memory: bytes (a whole number), or a share of what is free (a fraction up to 1.0), on a device with
    memory of its own of what the weights leave; None: half of it. A file's layer for multi-token prediction
    has cells beside those of each block.
    UsageError where not even one sequence of two blocks fits.
    """
    windows = {"S": max_sequences, **_cells(rooms)}
    fixed = state_bytes(executor, {"C": 0, **windows})
    block_bytes = state_bytes(executor, {"C": BLOCK_SIZE, **windows}) - fixed
    ahead = BLOCK_SIZE * head_cell_bytes(executor)
    block_bytes, fixed = block_bytes + HEAD_CELLS * ahead // 4, fixed + max_sequences * ahead
    fixed += n_checkpoints * _of_a_sequence(executor) if n_checkpoints else 0
    most = min(max_sequences * -(-n_ctx // BLOCK_SIZE), MAX_CELLS // BLOCK_SIZE)
    memory = _bytes(kv_memory, executor)
    count = most if not block_bytes else min(most, max(0, memory - fixed) // block_bytes)
    if count < min(2, most):
        raise UsageError(
            f"kv_memory: wanted room for two blocks of {BLOCK_SIZE} tokens beside windows and the states of "
            f"{max_sequences} sequences, {fixed + 2 * block_bytes:,} bytes; got {memory:,}"
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
