"""The tokens of a vocabulary as bytes: what masks over tokens need to know of it, and a trie over them.

Knows nothing of grammars; made from a tokenizer or from any list of bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

Ints: TypeAlias = npt.NDArray[np.int32]
Bools: TypeAlias = npt.NDArray[np.bool_]

_CONTINUATIONS: Final = bytes(range(0x80, 0xC0))  # of UTF-8
MAX_BYTES: Final = 512
"""Tokens of more bytes are never allowed by a mask; real ones have fewer than 300."""


@dataclass(frozen=True, eq=False)
class TokenBytes:
    """The bytes of each token, by id; which tokens end a generation; which are control tokens.

    token_of: the id of the one token that a text spells, control tokens included, or None. encode: the ids of
    a text without control tokens.
    """

    pieces: Sequence[bytes]
    end_tokens: frozenset[int]
    special: frozenset[int] = frozenset()
    token_of: Callable[[str], int | None] | None = None
    encode: Callable[[str], list[int]] | None = None

    @property
    def n(self) -> int:
        """The number of tokens."""
        return len(self.pieces)

    def ids_behind(self, before: tuple[bytes, ...], data: bytes) -> list[int]:
        """The ids of some bytes within a text, as the tokenizer writes them behind the tokens `before`.

        None where it has no border there or between these tokens, where it changes the bytes, and of bytes
        that begin no character.
        """
        if not data or self.encode is None:
            return []
        context = b"".join(before).lstrip(_CONTINUATIONS)  # it may begin within a character; bytes may end so
        text = (context + data).decode("utf-8", "ignore")
        wanted = text.encode()[len(context) :]
        if not wanted or not (context + data).startswith(text.encode()):
            return []
        borders = [len(wanted), *(len(wanted) + n for n in accumulate(map(len, before[:0:-1])))]
        for line in ("", "\n"):  # the line keeps away the space that some tokenizers put before a text
            ids = self.encode(line + text)
            ends = list(accumulate(len(self.pieces[token]) for token in reversed(ids)))
            if set(borders) <= set(ends):
                own = ids[len(ids) - ends.index(len(wanted)) - 1 :]
                if b"".join(self.pieces[token] for token in own) == wanted:
                    return own
        return []

    @cached_property
    def of_byte(self) -> list[int | None]:
        """The lowest id whose token is this one byte; None for a byte that no token has alone."""
        tokens: list[int | None] = [None] * 256
        for token, piece in enumerate(self.pieces):
            if len(piece) == 1 and tokens[piece[0]] is None:
                tokens[piece[0]] = token
        return tokens

    @cached_property
    def trie(self) -> TokenTrie:
        """The trie of all tokens that text may consist of."""
        return TokenTrie(self)

    @cached_property
    def whole(self) -> Bools:
        """[n] tokens with at least one whole code point of UTF-8, no invalid byte and no zero byte."""
        return np.fromiter((0 not in piece and _has_code_point(piece) for piece in self.pieces), bool, self.n)


class TokenTrie:
    """A trie of tokens' bytes as arrays; nodes are numbered level by level, node 0 is the root.

    The children of a node are `first_child[node]` and the `n_children[node] - 1` nodes after it. Tokens that
    are empty, contain a zero byte (llama.cpp's C strings end there) or end a generation are left out.
    """

    def __init__(self, vocabulary: TokenBytes) -> None:
        kept = [
            token
            for token, piece in enumerate(vocabulary.pieces)
            if 0 < len(piece) <= MAX_BYTES and 0 not in piece and token not in vocabulary.end_tokens
        ]
        self.tokens = np.array(kept, np.int64)
        lengths = np.array([len(vocabulary.pieces[token]) for token in kept], np.int64)
        joined = np.frombuffer(b"".join(vocabulary.pieces[token] for token in kept), np.uint8)
        starts = np.cumsum(lengths) - lengths
        at = np.zeros(len(kept), np.int64)  # the node that each token has reached
        letters: list[npt.NDArray[np.uint8]] = [np.zeros(1, np.uint8)]
        parents: list[npt.NDArray[np.int64]] = [np.zeros(0, np.int64)]
        n_nodes = 1
        for depth in range(int(lengths.max(initial=0))):
            going = np.flatnonzero(lengths > depth)
            edges = at[going] * 256 + joined[starts[going] + depth]
            new, inverse = np.unique(edges, return_inverse=True)
            at[going] = n_nodes + inverse
            letters.append((new & 255).astype(np.uint8))
            parents.append(new >> 8)
            n_nodes += len(new)
        self.letters = np.concatenate(letters)
        self.node_of = at.astype(np.int32)
        parent = np.concatenate(parents)
        self.n_children = np.bincount(parent, minlength=n_nodes).astype(np.int32)
        self.first_child = (np.cumsum(self.n_children) - self.n_children + 1).astype(np.int32)

    @property
    def n_nodes(self) -> int:
        """Nodes, the root included."""
        return len(self.letters)

    def children(self, nodes: Ints) -> tuple[Ints, Ints]:
        """All children of nodes, and for each child the index of its parent in `nodes`."""
        counts = self.n_children[nodes]
        of = np.repeat(np.arange(len(nodes), dtype=np.int32), counts)
        before = np.cumsum(counts) - counts
        children = np.arange(len(of), dtype=np.int32) + (self.first_child[nodes] - before)[of]
        return children.astype(np.int32), of


def _has_code_point(piece: bytes) -> bool:
    """Whether a piece begins with a whole code point and has no invalid byte; it may end in part of one."""
    try:
        return bool(piece.decode("utf-8"))
    except UnicodeDecodeError as error:
        return error.start > 0 and error.reason == "unexpected end of data"
