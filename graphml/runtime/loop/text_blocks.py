"""Texts of which only rows are wanted, in a scheduler: what a step has of them, and in which blocks.

Each is computed whole within one step, since its tokens may see later ones, and is pooled there; its blocks
are free again behind the step. A part of the scheduler in a file of its own. Knows sequences and blocks;
nothing of arrays or of what pooling is.
"""

from __future__ import annotations

from collections.abc import Sequence as Values

from graphml.errors import UsageError
from graphml.runtime.blocks.block_pool import BlockPool
from graphml.runtime.blocks.sequence import Sequence


def _n_blocks(text: Sequence, pool: BlockPool) -> int:
    return -(-len(text.ids) // pool.block_size)


def check_text(text: Sequence, pool: BlockPool) -> None:
    """UsageError for a text that no step could compute."""
    most = min([pool.n_blocks, *(window.n_blocks for window in pool.windows)])
    if not 0 < _n_blocks(text, pool) <= most:
        raise UsageError(
            f"text: wanted 1 to {most * pool.block_size} ids, for which the engine has blocks; "
            f"got {len(text.ids)}"
        )


def obstacle_of(text: Sequence, texts: Values[Sequence], budget: int, pool: BlockPool, spare: int) -> str:
    """What a text waits for beside those that a step has already: rows or blocks; "": it can be computed.

    The first of a step has as many rows as it needs. spare: free blocks that are others'.
    """
    if texts and (len(text.ids) > budget or text.request.pooling != texts[0].request.pooling):
        return "rows"
    needed = _n_blocks(text, pool)
    free = min([pool.n_free - spare, *(window.n_free for window in pool.windows)])
    return "" if needed <= free else "blocks"


def take_blocks(text: Sequence, pool: BlockPool) -> None:
    """Give a text the blocks that all of it needs, which are free."""
    blocks = pool.allocate(_n_blocks(text, pool))
    assert blocks is not None
    text.blocks, text.n_cached = blocks, 0
