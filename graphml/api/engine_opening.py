"""What an engine runs on, assembled: blocks, windows, checkpoints, runner, scheduler, loop.

A loop ends with its owner, and all before Python does. Knows arguments of `Model.engine` and which part wants
which; nothing of requests.
"""

from __future__ import annotations

import atexit
import weakref
from dataclasses import dataclass

from graphml.api.engine_memory import n_blocks_for, n_checkpoints_for, window_rooms
from graphml.errors import UsageError
from graphml.ir.cells import BLOCK_SIZE
from graphml.loading.pooling import LOGITS
from graphml.options.argument_checks import whole_number
from graphml.runtime.blocks.block_pool import BlockPool
from graphml.runtime.blocks.window_blocks import WindowBlocks
from graphml.runtime.loop.scheduler import Scheduler
from graphml.runtime.loop.speculation import Speculation
from graphml.runtime.loop.step_budget import StepBudget
from graphml.runtime.loop.step_loop import StepLoop
from graphml.runtime.plans.checkpoints import Checkpoints
from graphml.runtime.programs.executor import Executor
from graphml.runtime.steps.runner import Runner

MAX_SEQUENCES = 8


@dataclass(frozen=True)
class EngineParts:
    """loop: of the runner and a scheduler, begun by the first request. n_ctx: most tokens of a sequence."""

    loop: StepLoop
    runner: Runner
    n_ctx: int


def check_deterministic(executor: Executor, wanted: bool | None) -> None:
    """UsageError where an engine is wanted otherwise than the model, whose programs it runs, was opened."""
    if wanted is not None and not isinstance(wanted, bool):
        raise UsageError(f"deterministic: wanted True, False, or None; got {wanted!r}")
    if wanted is not None and wanted != executor.deterministic:
        raise UsageError(
            f"deterministic: wanted {executor.deterministic}, as {executor.file.path} was opened, or None; "
            f"got {wanted}: for that load(..., deterministic={wanted}), on the backend 'cpu'"
        )


def checked_sequences(executor: Executor, max_sequences: int | None) -> int:
    """How many sequences run at a time; None: `MAX_SEQUENCES`."""
    count = MAX_SEQUENCES if max_sequences is None else whole_number(max_sequences)
    if count is None or not 1 <= count <= executor.n_batch:
        raise UsageError(f"max_sequences: wanted 1 to n_batch = {executor.n_batch}; got {max_sequences!r}")
    return count


def checked_itl(target_itl_ms: float) -> float:
    """Seconds between two tokens that steps aim at."""
    if isinstance(target_itl_ms, bool) or not isinstance(target_itl_ms, int | float) or not target_itl_ms > 0:
        raise UsageError(f"target_itl_ms: wanted milliseconds above 0; got {target_itl_ms!r}")
    return target_itl_ms / 1000


def engine_parts(
    executor: Executor,
    n_ctx: int,
    kv_memory: float | None,
    max_sequences: int,
    target_itl_s: float,
    prefix_cache: bool,
) -> EngineParts:
    """The parts of an engine with these settings, for which the memory is allocated.

    Of a diffusion model prompts and answers are texts, each computed whole in a step, and no prefix is kept.
    """
    count, denoises = max_sequences, executor.denoises
    prefix_cache = prefix_cache and not denoises
    rooms = window_rooms(executor, kv_memory, count, n_ctx)
    # A checkpoint is no use where its windows are gone.
    n_checkpoints = n_checkpoints_for(executor, kv_memory, count) if prefix_cache and not rooms else 0
    n_blocks = n_blocks_for(executor, kv_memory, count, n_ctx, n_checkpoints, rooms)
    if denoises:  # of one step: answers hold nothing between two
        n_blocks = min(n_blocks, count + -(-executor.n_batch // BLOCK_SIZE))
    windows = [WindowBlocks(room, n_blocks) for room in rooms]
    n_ctx = min(n_ctx, n_blocks * BLOCK_SIZE)
    pooling = LOGITS if denoises else ""
    runner = Runner(executor, n_blocks, count, n_checkpoints, windows, pooling, n_ctx=n_ctx)
    keep = bool(prefix_cache) and (bool(n_checkpoints) or not executor.recurrent)
    pool = BlockPool(n_blocks, BLOCK_SIZE, keep, windows=windows)
    checkpoints = Checkpoints(n_checkpoints, BLOCK_SIZE, runner.has_cells) if n_checkpoints else None
    scheduler = Scheduler(
        pool, count, n_ctx,
        recurrent=executor.recurrent, checkpoints=checkpoints, max_chunk=executor.max_chunk,
    )  # fmt: skip
    speculation = Speculation(executor.n_batch, executor.recurrent)
    budget = StepBudget(target_itl_s, executor.n_batch)
    loop = StepLoop(runner, scheduler, budget, speculation=speculation, n_plans=runner.n_stages)
    return EngineParts(loop, runner, n_ctx)


_OPEN: weakref.WeakSet[StepLoop] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """No step may run while Python ends."""
    for loop in list(_OPEN):
        loop.close()


def opened(owner: object, loop: StepLoop) -> None:
    """A loop ends when its owner is collected, which waits for nobody, and when the process ends."""
    _OPEN.add(loop)
    weakref.finalize(owner, StepLoop.ask_to_close, loop)  # in any thread, so it must not wait
