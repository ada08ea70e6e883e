"""Blocks by the tokens that they begin with: for prompts that part from them within a block.

Full blocks that may be shared, and those that a sequence has left filled partly. Knows token ids, prefixes
and block numbers; nothing of who holds a block or of cells.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np

from graphml.ir.op import Array
from graphml.runtime.blocks.block_content import Prefix

MOST_COMPARED = 64
"""Blocks that some tokens are compared with, the latest of those that begin with their first one."""


@dataclass(frozen=True)
class BegunBlock:
    """The first `count` cells of a block are of a prompt's next tokens."""

    block: int
    count: int


class BegunBlocks:
    """The tokens of blocks, by the prefix before them and the first of them."""

    def __init__(self) -> None:
        self._tokens: dict[int, Array] = {}
        self._keys: dict[int, tuple[Hashable, int]] = {}
        self._blocks: dict[tuple[Hashable, int], dict[int, None]] = {}  # the latest last

    def __contains__(self, block: int) -> bool:
        return block in self._keys

    def add(self, block: int, prefix: Prefix, ids: Array) -> None:
        """A block holds one id or more after a prefix, from its first cell on."""
        self.forget(block)
        key = prefix.identity, int(ids[0])
        self._tokens[block], self._keys[block] = np.array(ids, np.int32), key
        self._blocks.setdefault(key, {})[block] = None

    def forget(self, block: int) -> None:
        """Its content is gone; nothing happens to a block that was not added."""
        key = self._keys.pop(block, None)
        if key is not None:
            del self._tokens[block], self._blocks[key][block]
            if not self._blocks[key]:
                del self._blocks[key]

    def within(self, ids: Array, prefix: Prefix) -> list[BegunBlock]:
        """The blocks all of whose tokens are the first of some ids after a prefix."""
        candidates = [BegunBlock(block, len(self._tokens[block])) for block in self._latest(ids, prefix)]
        return [
            begun for begun in candidates if np.array_equal(self._tokens[begun.block], ids[: begun.count])
        ]

    def longest(self, ids: Array, prefix: Prefix) -> BegunBlock | None:
        """A block with the most of the first ids after a prefix; the latest of several, None if none."""
        longest = None
        for block in self._latest(ids, prefix):
            tokens = self._tokens[block][: len(ids)]
            equal = tokens == ids[: len(tokens)]
            count = len(tokens) if equal.all() else int(np.argmin(equal))
            if longest is None or count > longest.count:
                longest = BegunBlock(block, count)
            if count == len(ids):
                break
        return longest

    def _latest(self, ids: Array, prefix: Prefix) -> list[int]:
        """The blocks that some ids after a prefix are compared with, the latest first."""
        same = self._blocks.get((prefix.identity, int(ids[0])), {}) if len(ids) else {}
        return list(itertools.islice(reversed(same), MOST_COMPARED))
