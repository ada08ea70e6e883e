"""The blocks of source texts: what an encoder has read for a sequence, which its decoder attends to.

They are numbered like those of the sequences' own tokens and are stored in arrays of their own, so that
a block of memory is one of each. Sequences of one text share it while one of them runs.

Knows sequences and block numbers; nothing of arrays or encoders.
"""

from __future__ import annotations

from collections.abc import Iterable

from graphml.runtime.block_pool import BlockPool
from graphml.runtime.sequence import Sequence


class SourceBlocks:
    """As many blocks as the pool of the sequences' own tokens has."""

    def __init__(self, n_blocks: int, block_size: int) -> None:
        self._pool = BlockPool(n_blocks, block_size, keep=False)

    @property
    def n_used(self) -> int:
        """Blocks that running sequences hold."""
        return self._pool.n_used

    def take(self, sequence: Sequence, running: Iterable[Sequence], room: int | None) -> int | None:
        """Give a sequence the blocks of its source text: how many ids an encoder has to read for it.

        0 where there is no text, or another running sequence has it. None, and no change, where blocks are
        too few, or the ids are more than `room`, if that is given.
        """
        text = sequence.request.source
        if not len(text):
            return 0
        extra = sequence.request.extra
        for one in running:
            if one.source_blocks and one.request.extra == extra:
                self._pool.share(one.source_blocks)
                sequence.source_blocks = list(one.source_blocks)
                return 0
        if room is not None and len(text) > room:
            return None
        blocks = self._pool.allocate(-(-len(text) // self._pool.block_size))
        if blocks is None:
            return None
        sequence.source_blocks = blocks
        return len(text)

    def give_back(self, sequence: Sequence) -> None:
        """The sequence no longer runs."""
        self._pool.release(sequence.source_blocks)
        sequence.source_blocks = []
