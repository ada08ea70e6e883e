"""What identifies the content of a block: its tokens, and all tokens before them.

Knows token ids and hashes; nothing of blocks, pools or arrays.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable
from dataclasses import dataclass


@dataclass(frozen=True)
class Prefix:
    """The tokens up to the end of a block: `digest` is their hash, `identity` differs for other tokens.

    lineage: SHA-256 of all of them, whatever the hash is: an identity that other processes know, too.
    """

    digest: bytes
    identity: Hashable
    lineage: bytes

    @staticmethod
    def empty(extra: bytes = b"") -> Prefix:
        """No token yet. extra: what besides tokens decides about keys and values (adapter, source, salt)."""
        of_extra = hashlib.sha256(extra).digest()
        return Prefix(of_extra, extra, of_extra)


@dataclass(frozen=True)
class Content:
    """What a block holds: its tokens as bytes of int32, the prefix before them, and the one that they end."""

    tokens: bytes
    parent: Prefix
    prefix: Prefix


CELLS = ""
"""The kind of what a block itself holds, in a store: keys and values of its tokens."""


@dataclass(frozen=True)
class ContentPart:
    """What is known of the tokens of a block, or after them: one of several kinds, for the same content.

    kind: `CELLS`, the name of a window's group, or what else a store holds; see `stored_prefixes`.
    """

    kind: str
    content: Content


def digest_of(parent: bytes, tokens: bytes) -> bytes:
    """The hash of a block's tokens and of all before them."""
    return hashlib.sha256(parent + tokens).digest()


def lineage_of(parent: Prefix, tokens: bytes) -> bytes:
    """The lineage of a prefix with a block's tokens behind it."""
    return hashlib.sha256(parent.lineage + tokens).digest()
