"""N-gram lookup against a search through all of the text."""

from __future__ import annotations

import random
from collections import Counter

from graphml.sampling.ngram_lookup import LONGEST, SHORTEST, NgramLookup


def searched(ids: list[int], count: int) -> tuple[list[int], int]:
    """The latest of the longest earlier occurrences of the last ids, by trying all places."""
    best, length = -1, 0
    for end in range(len(ids) - 1, SHORTEST - 1, -1):
        same = 0
        while same < min(LONGEST, end) and ids[end - same - 1] == ids[-same - 1]:
            same += 1
        if same >= SHORTEST and same > length:
            best, length = end, same
    found = ids[best : best + count] if best >= 0 else []
    while found and len(found) < count:
        found += found[: count - len(found)]
    return found, length


def test_what_is_found_is_the_latest_longest_occurrence() -> None:
    chance, n_found = random.Random(1), 0
    for _ in range(40):
        lookup, ids = NgramLookup(), list[int]()
        for _ in range(60):
            ids += [chance.randint(0, 40) for _ in range(chance.randint(1, 3))]
            if len(ids) > 8 and chance.random() < 0.5:
                first = chance.randrange(len(ids) - 6)
                ids += ids[first : first + chance.randint(3, 6)]
            found = lookup.find(ids, 5)
            counts = Counter(tuple(ids[i : i + 3]) for i in range(len(ids)))
            if max(counts.values()) <= 4:  # all are remembered
                assert found == searched(ids, 5)
                n_found += bool(found[0])
    assert n_found > 50


def test_ids_that_were_taken_away_are_forgotten() -> None:
    lookup = NgramLookup()
    lookup.find([1, 2, 3, 4, 5, 6, 7], 3)
    assert lookup.find([1, 2, 3], 3) == ([], 0)
    assert lookup.find([1, 2, 3, 9, 1, 2, 3], 3) == ([9, 1, 2], 3)


def test_a_text_that_repeats_itself_goes_on_so() -> None:
    assert NgramLookup().find([7, 8, 7, 8, 7, 8], 5)[0] == [7, 8, 7, 8, 7]
