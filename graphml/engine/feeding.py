"""The inputs of a step: ids, where they go in a cache, and the rows that are wanted of them.

Knows arrays and a cache; nothing of programs or of what the graph does with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from graphml.engine.cache import PagedCache
from graphml.ir.op import Array


def fill(
    feed: Mapping[str, Array], ids: Mapping[int, Array], cache: PagedCache, which: str
) -> dict[str, int]:
    """Make room for ids and write a step's inputs; the step's dims. which: the rows that are wanted."""
    given = cache.append_all({sequence: len(one) for sequence, one in ids.items()})
    counts = np.array([len(one) for one in ids.values()], np.int32)
    given |= {
        "tokens": np.concatenate(list(ids.values())),
        "wanted": _wanted(counts, which),
        "lengths": np.array(cache.lengths, np.int32),
    }
    n_blocks = _feed(feed, given, ids, cache)
    n_tokens, n_wanted = len(given["tokens"]), len(given["wanted"])
    return {"T": n_tokens, "O": n_wanted, "S": len(cache.lengths), "B": n_blocks, "C": cache.n_cells}


def _wanted(counts: Array, which: str) -> Array:
    """The numbers of the wanted rows of sequences that have so many each."""
    ends = np.cumsum(counts, dtype=np.int32)
    return {"all": np.arange(ends[-1], dtype=np.int32), "first": ends - counts, "last": ends - 1}[which]


def _feed(
    feed: Mapping[str, Array], given: Mapping[str, Array], sequences: Iterable[int], cache: PagedCache
) -> int:
    """Write a step's inputs, as far as the graph has them; return how many blocks its table is wide."""
    for name, values in given.items():
        if name in feed:
            feed[name][: len(values)] = values
    if "block_table" not in feed:
        return 0
    for sequence in sequences:
        n_blocks = -(-cache.lengths[sequence] // cache.block_size)
        # The table is read up to the current length only, so no more of it is written.
        feed["block_table"][sequence, :n_blocks] = cache.table[sequence, :n_blocks]
    return int(feed["block_table"].shape[1])
