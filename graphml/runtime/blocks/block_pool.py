"""The block pool: blocks of KV cells, shared between sequences by content, evicted least recently used first.

A full block that was computed may be shared: it is found by a hash of all tokens up to its end, and compared
by its tokens and by what precedes it, so that equal hashes never mix two prefixes. A freed block keeps its
content until it is allocated again. A prompt that parts from others within a block finds the cells before
that (`blocks.begun_blocks`); blocks that were filled partly are kept for this alone. After vLLM's
prefix caching (`docs/design/prefix_caching.md` there).

Knows block numbers, token ids and hashes; nothing of arrays, models or sequences.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from graphml.errors import UsageError
from graphml.ir.op import Array
from graphml.runtime.blocks.begun_blocks import BegunBlock, BegunBlocks
from graphml.runtime.blocks.block_content import CELLS, Content, ContentPart, Prefix, digest_of, lineage_of
from graphml.runtime.blocks.window_blocks import WindowBlocks


class BlockPool:
    """`n_blocks` blocks of `block_size` cells. keep: freed blocks keep their content for later prefixes.

    windows: the blocks of layers that see a window; a sequence of the pool reports its position to them.
    kind: of what its blocks hold.
    """

    def __init__(
        self,
        n_blocks: int,
        block_size: int,
        keep: bool = True,
        hash_block: Callable[[bytes, bytes], bytes] = digest_of,
        windows: Sequence[WindowBlocks] = (),
        kind: str = CELLS,
    ) -> None:
        self.windows, self.kind = tuple(windows), kind
        self.n_blocks, self.block_size = n_blocks, block_size
        self.keeps, self._hash = keep, hash_block
        self.keeps_begun = keep and not windows
        """Whether a part of a block can be found: a copy of its cells is all that a prompt needs to go on."""
        self._references = [0] * n_blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(n_blocks))  # evicted first is first
        self._content: dict[int, Content] = {}
        self.evicted: list[tuple[int, ContentPart]] | None = None
        """Where a list: blocks that were allocated again, its own or a window's by kind, and what their cells
        hold until the next step."""
        self._by_digest: dict[bytes, list[int]] = {}
        self._begun = BegunBlocks()
        self._identities = itertools.count(1)
        self.n_evicted = 0  # kept contents that were given up, so far

    @property
    def n_free(self) -> int:
        """Blocks that nobody holds; those with content count."""
        return len(self._free)

    @property
    def n_used(self) -> int:
        """Blocks that somebody holds."""
        return self.n_blocks - len(self._free)

    @property
    def n_kept(self) -> int:
        """Blocks that nobody holds, with content that can be found."""
        return sum(self._is_found(block) for block in self._free)

    @property
    def n_shared(self) -> int:
        """Blocks that are held more than once."""
        return sum(count > 1 for count in self._references)

    def is_held(self, block: int) -> bool:
        """Whether somebody holds it."""
        return self._references[block] > 0

    def is_shared(self, block: int) -> bool:
        """Whether it is held more than once."""
        return self._references[block] > 1

    def forget(self, block: int) -> None:
        """A block gets another content: it is found no more."""
        if self.evicted is not None and block in self._content:
            self.evicted += self._parts(block)
        self._forget(block)

    def lose_all(self) -> None:
        """What blocks held is gone: nothing is found any more, nor saved as evicted."""
        for block in range(self.n_blocks):
            self._forget(block)

    def held(self, ids: Array, prefix: Prefix) -> list[int]:
        """The blocks that hold the first ids after `prefix`, whether windows are there for them or not."""
        return self.longest(ids, prefix)[0]

    def match(self, ids: Array, prefix: Prefix) -> tuple[list[int], list[Prefix]]:
        """The blocks that hold the first ids after `prefix`, and the prefixes they end; none is taken yet.

        After nothing else, no more than windows are there for: ids are then computed behind them.
        """
        blocks, prefixes = self.longest(ids, prefix)
        while blocks and not all(window.is_found(blocks) for window in self.windows):
            blocks.pop()
            prefixes.pop()
        return blocks, prefixes

    def longest(self, ids: Array, prefix: Prefix) -> tuple[list[int], list[Prefix]]:
        """The blocks of the first ids after `prefix`, without regard to windows; the prefixes they end."""
        blocks: list[int] = []
        prefixes: list[Prefix] = []
        for tokens in self._whole(ids):
            block = self._find(prefix, tokens)
            if block is None:
                break
            prefix = self._content[block].prefix
            blocks.append(block)
            prefixes.append(prefix)
        return blocks, prefixes

    def begun(self, ids: Array, prefix: Prefix) -> BegunBlock | None:
        """The block whose first cells hold the most of the first ids after `prefix`; it is not taken yet."""
        return self._begun.longest(ids, prefix)

    def keep_begun(self, block: int, prefix: Prefix, ids: Array) -> None:
        """A held block is filled partly, by `ids` after `prefix`, and nobody writes to it any more.

        Those that hold less of the same are given up for it; where another holds as much or more, that one is
        kept.
        """
        if not self.keeps_begun:
            return
        same = self.begun(ids, prefix)
        if same is None or same.count < len(ids):
            self._add_begun(block, prefix, ids)
        elif same.block in self._free:
            self._free.move_to_end(same.block)

    def begun_within(self, ids: Array, prefix: Prefix) -> list[BegunBlock]:
        """The blocks that are filled partly, by nothing but the first of `ids` after `prefix`."""
        return [begun for begun in self._begun.within(ids, prefix) if begun.block not in self._content]

    def _add_begun(self, block: int, prefix: Prefix, ids: Array) -> None:
        for less in self.begun_within(ids, prefix):
            self._begun.forget(less.block)
            if less.block in self._free:
                self._free.move_to_end(less.block, last=False)
        self._begun.add(block, prefix, ids)

    def share(self, blocks: Iterable[int]) -> None:
        """Hold some blocks once more."""
        for block in blocks:
            self._references[block] += 1
            self._free.pop(block, None)

    def allocate(self, count: int, with_windows: bool = True) -> list[int] | None:
        """So many blocks, held once, least recently used content first; None, and no change, if too few.

        with_windows: each with a block of each window, for a sequence that computes its tokens.
        """
        if count > len(self._free):
            return None
        blocks = [self._free.popitem(last=False)[0] for _ in range(count)]
        for block in blocks:
            self.n_evicted += self._is_found(block)
            self.forget(block)
            self._references[block] = 1
        for window in self.windows if with_windows else ():
            self._note_lost(window, window.take(blocks))
        return blocks

    def put_window(self, window: WindowBlocks, block: int) -> int:
        """The window's block for one of the pool that has none, kept as if a sequence had let go of it."""
        lost = window.take([block])
        self._note_lost(window, lost)
        window.let_go([block])
        return int(window.of[block])

    def _note_lost(self, window: WindowBlocks, lost: Iterable[tuple[int, int]]) -> None:
        """What a window no longer has of blocks that are kept; of those in use it was behind the window."""
        for own, block in lost:
            if self.evicted is not None and block in self._content and not self._references[block]:
                self.evicted.append((own, ContentPart(window.group.name, self._content[block])))

    def following(self, ids: Array, prefix: Prefix) -> Iterator[Content]:
        """The contents of blocks that would hold `ids` after `prefix`, in order, without identities."""
        for tokens in self._whole(ids):
            digest, lineage = self._hash(prefix.digest, tokens), lineage_of(prefix, tokens)
            content = Content(tokens, prefix, Prefix(digest, None, lineage))
            yield content
            prefix = content.prefix

    def kept(self) -> list[tuple[int, ContentPart]]:
        """Blocks that nobody holds and what they hold, windows' with them, in the order of eviction."""
        return [part for block in self._free if block in self._content for part in self._parts(block)]

    def _parts(self, block: int) -> list[tuple[int, ContentPart]]:
        """What is in a block, and in those of windows that belong to it."""
        content = self._content[block]
        own = [(int(window.of[block]), ContentPart(window.group.name, content)) for window in self.windows]
        return [(block, ContentPart(self.kind, content)), *(part for part in own if part[0] >= 0)]

    def commit(self, block: int, prefix: Prefix, ids: Array) -> Prefix:
        """A held block is full: it holds `ids` [block_size] after `prefix`. Returns the prefix that it ends.

        Where another block holds the same, that one stays the one that is found, unless it lost its windows.
        """
        if len(ids) != self.block_size or self._references[block] < 1:
            raise UsageError(f"commit: wanted {self.block_size} ids in a held block; got {len(ids)}")
        tokens = np.asarray(ids, np.int32).tobytes()
        same = self._find(prefix, tokens)
        if same is not None:
            known = self._content[same]
            if any(window.of[same] < 0 <= window.of[block] for window in self.windows):
                self._replace(same, block)
            return known.prefix
        self._forget_content(block)
        digest = self._hash(prefix.digest, tokens)
        extended = Prefix(digest, next(self._identities), lineage_of(prefix, tokens))
        if self.keeps:
            self._note(block, Content(tokens, prefix, extended))
        return extended

    def release(self, blocks: Sequence[int]) -> None:
        """Hold some blocks of one sequence, in its order, once less; the last is evicted first."""
        for block in reversed(blocks):
            if self._references[block] < 1:
                raise UsageError(f"release: block {block} is not held")
            self._references[block] -= 1
            if not self._references[block]:
                self._free[block] = None
                if not self._is_found(block):
                    self._free.move_to_end(block, last=False)

    def _whole(self, ids: Array) -> Iterable[bytes]:
        size = self.block_size
        for start in range(0, len(ids) - size + 1, size):
            yield np.asarray(ids[start : start + size], np.int32).tobytes()

    def _find(self, prefix: Prefix, tokens: bytes) -> int | None:
        for block in self._by_digest.get(self._hash(prefix.digest, tokens), ()):
            content = self._content[block]
            if content.tokens == tokens and content.parent.identity == prefix.identity:
                return block
        return None

    def _replace(self, same: int, block: int) -> None:
        """Another block is the one that is found for what `same` holds."""
        content = self._content[same]
        self._forget_content(same)
        if same in self._free:
            self._free.move_to_end(same, last=False)
        self._note(block, content)

    def _is_found(self, block: int) -> bool:
        return block in self._content or block in self._begun

    def _note(self, block: int, content: Content) -> None:
        self._content[block] = content
        self._by_digest.setdefault(content.prefix.digest, []).append(block)
        if self.keeps_begun:
            self._add_begun(block, content.parent, np.frombuffer(content.tokens, np.int32))

    def _forget(self, block: int) -> None:
        self._forget_content(block)
        for window in self.windows:
            window.forget(block)

    def _forget_content(self, block: int) -> None:
        self._begun.forget(block)
        content = self._content.pop(block, None)
        if content is not None:
            same = self._by_digest[content.prefix.digest]
            same.remove(block)
            if not same:
                del self._by_digest[content.prefix.digest]
