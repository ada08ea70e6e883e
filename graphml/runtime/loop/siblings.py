"""Sequences with a common prompt: it is computed for one of them, and the others take it over.

Knows sequences and blocks; nothing of steps, queues or arrays.
"""

from __future__ import annotations

from collections.abc import Iterable

from graphml.runtime.blocks.block_pool import BlockPool
from graphml.runtime.blocks.sequence import Sequence
from graphml.runtime.plans.moved_blocks import copy_begun, fork
from graphml.runtime.plans.prompt_scores import n_findable
from graphml.runtime.plans.step_plan import Move


def is_awaited(sequence: Sequence, waiting: Iterable[Sequence], pool: BlockPool) -> bool:
    """Whether others of its request wait for its prompt, to take it over."""
    request = sequence.request
    if request.n == 1 or pool.windows or sequence.n_computed >= request.n_prompt - 1:
        return False
    return any(other.request is request for other in waiting)


def sibling_of(sequence: Sequence, running: Iterable[Sequence], pool: BlockPool) -> Sequence | None:
    """A running sequence of its request, the furthest within the prompt, whose blocks hold that still.

    None where layers have windows, since blocks of these are given back: prefixes are found by content there.
    """
    if sequence.request.n == 1 or sequence.n_dropped or pool.windows:
        return None
    siblings = [
        sibling for sibling in running if sibling.request is sequence.request and not sibling.n_dropped
    ]
    return max(siblings, key=lambda sibling: min(sibling.n_computed, sibling.request.n_prompt), default=None)


def computes_for(running: Sequence, sequence: Sequence, block_size: int) -> int:
    """How many first ids of its prompt this one can share once a running one has computed them; or 0."""
    if running.n_computed >= running.request.n_prompt or sequence.request.pooling:
        return 0
    if running.request.priority < sequence.request.priority:
        return 0
    common = min(running.common_with(sequence), n_findable(sequence)) // block_size * block_size
    worth = common > running.n_computed and 2 * common >= len(sequence.ids) - block_size
    return common if worth else 0


def take_over(
    sequence: Sequence, sibling: Sequence | None, pool: BlockPool, recurrent: bool, is_ahead: bool = False
) -> tuple[tuple[Move, ...], int | None]:
    """Take over what a sibling has computed of the prompt: the moves, and the slot of its states, if any.

    Without a sibling, what a block begins with. recurrent: sequences have states, which are of use only if
    they have seen the prompt's ids and no others. is_ahead: the sibling's have read more than is computed.
    """
    if sibling is None:
        return copy_begun(sequence, n_findable(sequence), pool), None
    if not recurrent:
        return fork(sequence, sibling, pool), None
    common = min(sequence.request.n_prompt, len(sequence.ids) - 1)
    if sibling.n_computed != common or sequence.n_computed >= common or sibling.n_again or is_ahead:
        return (), None  # n_again: its states have read a draft that was wrong
    moves = fork(sequence, sibling, pool)
    assert sequence.n_computed == common  # the scheduler has seen to the block
    return moves, sibling.slot
