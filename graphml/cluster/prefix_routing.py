"""Which engine computes a request: one that holds the longest part of its beginning and is not much busier.

Knows beginnings as texts, and engines by name and load; nothing of Ray, requests or tokens.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter, OrderedDict
from collections.abc import Mapping

BLOCK = 128
"""Characters of a text that are compared at once: about the 32 tokens of a block of the cache."""
MOST_BLOCKS = 512
"""Blocks of a text that are looked at."""
MOST_KNOWN = 65_536
"""Beginnings that are remembered, the latest used."""
SPREAD, SLACK = 0.25, 1
"""An engine gets no further request for its beginnings when it has more requests than the least busy one and
SPREAD x the mean, or SLACK where that is more: so none is left out."""


class PrefixRouter:
    """Remembers which engines have read which beginnings, and chooses an engine for each request."""

    def __init__(self) -> None:
        self._readers: OrderedDict[bytes, dict[str, None]] = OrderedDict()
        self._n_chosen = Counter[str]()

    def choose(self, text: str, loads: Mapping[str, int]) -> str:
        """The engine for a text that begins so, which is remembered to have read it.

        loads: requests under way by engine, of all that may be chosen; at least one.
        """
        limit = min(loads.values()) + max(SLACK, SPREAD * sum(loads.values()) / len(loads))
        blocks, n_read = _chain(text), dict[str, int]()
        for block in blocks:
            readers = [name for name in self._readers.get(block, ()) if loads.get(name, math.inf) <= limit]
            if not readers:
                break
            for name in readers:
                n_read[name] = n_read.get(name, 0) + 1
        most = max(n_read.values(), default=0)
        names = [name for name, count in n_read.items() if count == most] or loads
        # Steps of their own, since a cluster may have a thousand engines.
        least = min(loads[name] for name in names)
        chosen = min((name for name in names if loads[name] == least), key=self._n_chosen.__getitem__)
        self._n_chosen[chosen] += 1
        for block in blocks:
            self._readers.setdefault(block, {})[chosen] = None
            self._readers.move_to_end(block)
        while len(self._readers) > MOST_KNOWN:
            self._readers.popitem(last=False)
        return chosen

    def forget(self, engine: str) -> None:
        """An engine has lost what it has read."""
        for readers in self._readers.values():
            readers.pop(engine, None)


def _chain(text: str) -> list[bytes]:
    """A hash of each beginning of whole blocks, so that equal blocks count behind equal ones alone."""
    hashes, parent = [], b""
    for start in range(0, len(text) - BLOCK + 1, BLOCK):
        block = text[start : start + BLOCK].encode("utf-8", "surrogatepass")
        parent = hashlib.blake2b(parent + block, digest_size=16).digest()
        hashes.append(parent)
    return hashes
