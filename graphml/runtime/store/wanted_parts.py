"""What a waiting sequence wants of a store: the parts that are missing where its prefix could go on from.

A prefix ends where its blocks are, those of each window that its next token sees, and a copy of the recurrent
states: in memory or in the store. Knows pools, sequences and what there is; nothing of files or cells.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from graphml.runtime.blocks.block_content import CELLS, Content, ContentPart, Prefix
from graphml.runtime.blocks.sequence import Sequence as RunningSequence
from graphml.runtime.blocks.source_blocks import SOURCE
from graphml.runtime.blocks.window_blocks import NONE, WindowBlocks
from graphml.runtime.loop.scheduler import Scheduler
from graphml.runtime.plans.checkpoints import STATES
from graphml.runtime.plans.prompt_scores import n_findable


@dataclass(frozen=True, eq=False)
class WantedPart:
    """A part that is in the store and not in memory. index: of the block in its sequence or source text."""

    part: ContentPart
    index: int


def wanted_parts(
    scheduler: Scheduler, sequence: RunningSequence, has: Callable[[ContentPart], bool], has_cells: bool
) -> list[WantedPart]:
    """What to load, in order; has: whether the store has a part. has_cells: whether blocks hold anything."""
    wanted = _of_source(scheduler, sequence, has)
    if sequence.request.pooling:  # all its rows are computed
        return wanted
    pool, ids = scheduler.pool, np.array(sequence.ids[: n_findable(sequence)], np.int32)
    held = pool.held(ids, sequence.prefix)
    n_room = len(held) + pool.n_free - sum(not pool.is_held(block) for block in held)
    contents: list[Content] = []
    for i, content in enumerate(pool.following(ids, sequence.prefix)):
        if i >= len(held) and has_cells and (i >= n_room or not has(ContentPart(CELLS, content))):
            break
        contents.append(content)
    ends = _ends(scheduler, sequence, held, contents, has)
    end = max(ends, default=0)
    if end <= _found_now(scheduler, sequence, ids):
        return wanted
    if has_cells:
        wanted += [WantedPart(ContentPart(CELLS, contents[i]), i) for i in range(len(held), end)]
    for window in pool.windows:
        needed = range(window.first_block(end * pool.block_size), end)
        missing = [i for i in needed if not _has_window(window, held, i)]
        wanted += [WantedPart(ContentPart(window.group.name, contents[i]), i) for i in missing]
    checkpoints = scheduler.checkpoints
    if checkpoints is not None and end * pool.block_size not in checkpoints.ends(sequence):
        wanted.append(WantedPart(ContentPart(STATES, contents[end - 1]), end - 1))
    return wanted


def _found_now(scheduler: Scheduler, sequence: RunningSequence, ids: np.ndarray) -> int:
    """How many blocks the sequence would begin behind without the store."""
    if scheduler.checkpoints is None:
        return len(scheduler.pool.match(ids, sequence.prefix)[0])
    checkpoint = scheduler.checkpoints.find(sequence, scheduler.pool)
    return 0 if checkpoint is None else checkpoint.n // scheduler.pool.block_size


def _ends(
    scheduler: Scheduler,
    sequence: RunningSequence,
    held: Sequence[int],
    contents: Sequence[Content],
    has: Callable[[ContentPart], bool],
) -> list[int]:
    """After how many blocks a sequence could begin, with what the store has."""
    size, ends = scheduler.pool.block_size, list(range(1, len(contents) + 1))
    for window in scheduler.pool.windows:
        there = [
            _has_window(window, held, i) or has(ContentPart(window.group.name, content))
            for i, content in enumerate(contents)
        ]
        gaps = [0]  # behind the last missing one, before each block
        for i, is_there in enumerate(there):
            gaps.append(gaps[-1] if is_there else i + 1)
        ends = [end for end in ends if gaps[end] <= window.first_block(end * size)]
    if scheduler.checkpoints is not None:
        known = scheduler.checkpoints.ends(sequence)
        ends = [end for end in ends if end * size in known or has(ContentPart(STATES, contents[end - 1]))]
    return ends


def _has_window(window: WindowBlocks, held: Sequence[int], index: int) -> bool:
    return index < len(held) and int(window.of[held[index]]) != NONE


def _of_source(
    scheduler: Scheduler, sequence: RunningSequence, has: Callable[[ContentPart], bool]
) -> list[WantedPart]:
    """All blocks of the source text, which is of use only whole; none where it is in memory."""
    request, sources = sequence.request, scheduler.sources
    if not len(request.source) or sources.found(request):
        return []
    every = list(sources.pool.following(sources.ids(request), Prefix.empty(request.extra)))
    if len(every) > sources.pool.n_free or not all(has(ContentPart(SOURCE, content)) for content in every):
        return []
    return [WantedPart(ContentPart(SOURCE, content), i) for i, content in enumerate(every)]
