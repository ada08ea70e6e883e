"""Who runs and waits in an engine at one moment, and who holds which blocks: plain values for those who look.

Knows the scheduler's state; nothing of text, requests' contents or files.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphml.runtime.blocks.sequence import Sequence
from graphml.runtime.loop.scheduler import Scheduler


@dataclass(frozen=True)
class SequenceView:
    """One sequence. id: its number in the engine, in the order in which they came, as in a timeline's steps.

    status: "waiting", "running" or "preempted". n_prompt, n_cached, n_computed, n_generated: ids of its
    prompt; those that it found computed; all that are computed; generated ones. blocks: those that it holds,
    in the order of its tokens; what several hold is shared. waits_for: a reason as of
    `graphml.runtime.loop.timeline.WaitingSequence`; empty while it runs.
    """

    id: int
    status: str
    n_prompt: int
    n_cached: int
    n_computed: int
    n_generated: int
    blocks: tuple[int, ...]
    waits_for: str


@dataclass(frozen=True)
class EngineSnapshot:
    """All sequences in their order; the pool's blocks, tokens of each, and free blocks with content."""

    sequences: tuple[SequenceView, ...]
    n_blocks: int
    block_size: int
    kept: tuple[int, ...]


def snapshot(scheduler: Scheduler) -> EngineSnapshot:
    """The state between two steps; the scheduler's lock is held by who asks."""
    pool = scheduler.pool
    every = sorted((*scheduler.running, *scheduler.waiting), key=lambda sequence: sequence.order)
    kept = tuple(block for block, _ in pool.kept())
    return EngineSnapshot(tuple(map(_view, every)), pool.n_blocks, pool.block_size, kept)


def _view(sequence: Sequence) -> SequenceView:
    return SequenceView(
        sequence.order, sequence.status.value, sequence.request.n_prompt,
        max(sequence.n_cached, 0), sequence.n_computed, sequence.n_generated,
        tuple(sequence.blocks), (sequence.waits_for or "turn") if sequence.waits else "",
    )  # fmt: skip
