"""The canonical tokens of a structure's literals: the tokenizer's own ids of the texts that may come next.

Models were trained on those. A mask of all tokens that fit lets a model spell keys and words of an enum in
letters, or in pieces that it never read. No text becomes impossible: each literal keeps the tokens that write
it from here on. Knows literals, tokens and masks; nothing of grammars.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from graphml.sampling.structured.literal_texts import SPACES, ByteWalk, Literal, literal_texts
from graphml.sampling.structured.packed_masks import Bits, packed, unpacked
from graphml.sampling.structured.token_bytes import TokenBytes

_SPACES: Final = bytes(SPACES)
MAX_TOKENS: Final = 4096
"""Where more tokens may come next, text is free."""


def is_narrow(bits: Bits) -> bool:
    """Whether so few tokens may come next that they may be those of literals, and more than one."""
    return 1 < int(np.bitwise_count(bits).sum()) <= MAX_TOKENS


def canonical_bits(bits: Bits, walk: ByteWalk, vocabulary: TokenBytes, accepted: Sequence[int]) -> Bits:
    """The tokens of a mask that begin the tokenizer's own ids of a literal that may come, and control tokens.

    walk: the place. accepted: the tokens before it. A literal counts where its ids do not reach back into the
    token before; if none does, all count. The mask itself where text is free, and where the tokenizer
    changes the text of a literal.
    """
    tokens = np.flatnonzero(unpacked(bits, vocabulary.n)).tolist()
    controls = vocabulary.special | vocabulary.end_tokens
    pieces = {token: vocabulary.pieces[token] for token in tokens if token not in controls}
    begun = {piece[:n] for piece in pieces.values() for n in range(len(piece))}
    before = _before(vocabulary, accepted)

    def settled(text: bytes) -> bool:
        """Whether the first token of a text ends before its last word, which what comes behind may change."""
        if text in begun:
            return False
        first = (vocabulary.ids_behind(before, text) or vocabulary.ids_behind((), text))[:1]
        return any(len(vocabulary.pieces[one]) <= _last_border(text) for one in first)

    literals = literal_texts(walk, settled)
    if not literals:
        return bits
    texts = [one.text for one in literals if one.text]
    ids: dict[bytes, list[int] | None] = {}
    is_layout = any(not one.text for one in literals)  # a text that may come with a space comes without, too
    for spaced in (False, True):
        group = [text for text in texts if (is_layout and text[0] in SPACES) is spaced]
        ids |= _own_ids(group, vocabulary, before)
    if any(ids[text] is None for text in texts):
        return bits
    kept = [token for token in tokens if token in controls]
    for one in literals:
        if not one.text:
            kept += _spaced(pieces, one.free, texts, vocabulary, before)
        elif own := ids[one.text]:
            kept += _first_tokens(one, own, pieces)
    mask = np.zeros(vocabulary.n, bool)
    mask[kept] = True
    return packed(mask) if mask.any() else bits


def _own_ids(
    texts: Sequence[bytes], vocabulary: TokenBytes, before: Sequence[bytes]
) -> dict[bytes, list[int] | None]:
    """The ids of each text behind the tokens before, empty where they reach back; where all do, each's alone.

    None for a text that the tokenizer changes.
    """
    ids: dict[bytes, list[int] | None] = {text: vocabulary.ids_behind(before, text) for text in texts}
    alone = {text: vocabulary.ids_behind((), text) or None for text in texts if not ids[text]}
    if len(alone) == len(texts):
        return alone
    return ids | {text: None for text, found in alone.items() if found is None}


def _before(vocabulary: TokenBytes, accepted: Sequence[int]) -> tuple[bytes, ...]:
    """The token before a place, and those before it as far as they are spaces; none of control tokens."""
    found: list[bytes] = []
    for token in reversed(accepted):
        if token in vocabulary.special:
            break
        found.insert(0, vocabulary.pieces[token])
        if found[0].strip(_SPACES):
            break
    return tuple(found)


def _spaced(
    pieces: Mapping[int, bytes],
    free: frozenset[int],
    texts: Sequence[bytes],
    vocabulary: TokenBytes,
    before: tuple[bytes, ...],
) -> list[int]:
    """The tokens that begin with free whitespace: with what follows, they are the tokenizer's own.

    Runs of spaces do not go on where the tokenizer has a longer token for them, so models end them.
    """
    firsts = {text[:1] for text in texts}
    joins = bool(before) and before[-1][-1] in SPACES
    found = []
    for token, piece in pieces.items():
        if not piece or piece[0] not in free:
            continue
        rest = piece.lstrip(_SPACES)
        space = piece.removesuffix(rest)
        behind = {max(one, rest, key=len) for one in texts if one.startswith(rest) or rest.startswith(one)}
        behind = behind if rest else firsts | {b""}
        is_own = not (rest or joins) or any(
            vocabulary.ids_behind(before, space + one)[:1] == [token] for one in behind
        )
        if is_own:
            found.append(token)
    return found


def _last_border(text: bytes) -> int:
    """Where the last word of a text begins, or what is behind it."""
    is_word = [byte >= 0x80 or chr(byte).isalnum() for byte in text]
    return max((i for i in range(1, len(text)) if is_word[i - 1] != is_word[i]), default=0)


def _first_tokens(literal: Literal, ids: Sequence[int], pieces: Mapping[int, bytes]) -> list[int]:
    """The tokens with which a literal of these ids may begin; a longer one may go on into free text."""
    text, n = literal.text, len(literal.text)
    found = [ids[0]] if ids and ids[0] in pieces else []
    if literal.free:
        found += [
            token
            for token, piece in pieces.items()
            if len(piece) > n and piece[n] in literal.free and piece.startswith(text)
        ]
    return found
