"""The blocks of source texts: what an encoder has read for a sequence, which its decoder attends to.

They are numbered like those of the sequences' own tokens and are stored in arrays of their own, so that
a block of memory is one of each. Sequences of one text share it; where prefixes are kept, it is found later,
too, but only whole, as each of its rows sees all others: a part of the text is of no use.

Knows sequences and block numbers; nothing of arrays or encoders.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from graphml.ir.op import Array
from graphml.runtime.blocks.block_content import Prefix
from graphml.runtime.blocks.block_pool import BlockPool
from graphml.runtime.blocks.request import Request
from graphml.runtime.blocks.sequence import Sequence

SOURCE = "source"
"""The kind of what a block of a text holds, in a store."""
_NO_ID = -1  # behind a text's last id in its last block


class SourceBlocks:
    """As many blocks as the pool of the sequences' own tokens has. keep: texts stay for later sequences."""

    def __init__(self, n_blocks: int, block_size: int, keep: bool) -> None:
        self.pool = BlockPool(n_blocks, block_size, keep, kind=SOURCE)

    @property
    def n_used(self) -> int:
        """Blocks that running sequences hold."""
        return self.pool.n_used

    def take(self, sequence: Sequence, running: Iterable[Sequence], room: int | None) -> int | None:
        """Give a sequence the blocks of its source text: how many ids an encoder has to read for it.

        0 where there is no text, or it was read. None, and no change, where blocks are too few, or the ids
        are more than `room`, if that is given.
        """
        request = sequence.request
        text = request.source
        if not len(text):
            return 0
        shared = self.found(request) or _shared_by(running, request)
        if shared:
            self.pool.share(shared)
            sequence.source_blocks = shared
            if sequence.n_cached < 0:
                sequence.n_source_cached = len(text)
            return 0
        if room is not None and len(text) > room:
            return None
        blocks = self.pool.allocate(-(-len(text) // self.pool.block_size))
        if blocks is None:
            return None
        sequence.source_blocks = blocks
        return len(text)

    def found(self, request: Request) -> list[int]:
        """The blocks that hold a whole text; none where one is missing."""
        ids = self.ids(request)
        blocks = self.pool.held(ids, Prefix.empty(request.extra))
        return blocks if len(blocks) * self.pool.block_size == len(ids) else []

    def ids(self, request: Request) -> Array:
        """The ids of a text in whole blocks, int32 [n]."""
        size = self.pool.block_size
        padding = -len(request.source) % size
        return np.concatenate([request.source, np.full(padding, _NO_ID, np.int32)])

    def read(self, sequences: Iterable[Sequence]) -> None:
        """The texts of these were read in a step: later sequences find them."""
        size = self.pool.block_size
        for sequence in sequences:
            prefix, ids = Prefix.empty(sequence.request.extra), self.ids(sequence.request)
            for i, block in enumerate(sequence.source_blocks):
                prefix = self.pool.commit(block, prefix, ids[i * size : (i + 1) * size])

    def give_back(self, sequence: Sequence) -> None:
        """The sequence no longer runs."""
        self.pool.release(sequence.source_blocks)
        sequence.source_blocks = []


def _shared_by(running: Iterable[Sequence], request: Request) -> list[int]:
    """The blocks of a running sequence whose text is the same; it may be read in this very step."""
    same = (sequence.source_blocks for sequence in running if sequence.request.extra == request.extra)
    return list(next((blocks for blocks in same if blocks), ()))
