"""Words that are encoded once: the frequent ones stay, and new ones never fill memory."""

from __future__ import annotations

import tracemalloc
from collections import Counter

import pytest

from graphml.text.tokenizer.words import MAX_BYTES, MAX_CHARACTERS, WordCache


def counting() -> tuple[WordCache, Counter[str]]:
    encoded = Counter[str]()

    def encode(word: str) -> list[int]:
        encoded[word] += 1
        return [ord(one) for one in word]

    return WordCache(encode), encoded


def test_words_give_their_ids_in_order_and_are_encoded_once() -> None:
    cache, encoded = counting()
    for _ in range(3):
        assert cache.encode(["a", "dog", "a"]) == [*b"adoga"]
    assert encoded == {"a": 1, "dog": 1}


@pytest.mark.parametrize(("n_words", "n_ids"), [(60_000, 2), (4_000, 256)], ids=["natural", "hostile"])
def test_new_words_take_no_more_memory_than_is_said(n_words: int, n_ids: int) -> None:
    often = 0

    def encode(word: str) -> list[int]:
        nonlocal often
        often += word == "often"
        first = 1000 * int(word, 36)
        return list(range(first, first + n_ids))  # integers of their own: Python shares small ones

    cache = WordCache(encode)
    tracemalloc.start()
    try:
        for number in range(0, n_words, 100):
            cache.encode(["often", *(f"{one:06}" for one in range(number, number + 100))])
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert MAX_BYTES // 2 < taken < 2 * MAX_BYTES
    assert often == 1  # was met again before the older words were forgotten


def test_words_that_are_too_long_are_not_kept() -> None:
    cache, encoded = counting()
    for length in (MAX_CHARACTERS, MAX_CHARACTERS + 1):
        for _ in range(2):
            assert cache.encode(["x" * length]) == [ord("x")] * length
    assert encoded == {"x" * MAX_CHARACTERS: 1, "x" * (MAX_CHARACTERS + 1): 2}
