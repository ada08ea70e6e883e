"""Words that are encoded once: the frequent ones stay, and new ones never fill memory."""

from __future__ import annotations

from collections import Counter

from graphml.text.tokenizer.words import MAX_CHARACTERS, MAX_KEPT, WordCache


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


def test_a_million_new_words_take_no_more_memory_than_a_few() -> None:
    cache, encoded = counting()
    for number in range(0, 1_000_000, 1000):
        cache.encode(["often", *(f"{one:06}" for one in range(number, number + 1000))])
    assert 0 < len(cache) <= 2 * MAX_KEPT // 14
    assert encoded["often"] == 1  # was looked up in each generation


def test_words_that_are_too_long_are_not_kept() -> None:
    cache, encoded = counting()
    for length in (MAX_CHARACTERS, MAX_CHARACTERS + 1):
        for _ in range(2):
            assert cache.encode(["x" * length]) == [ord("x")] * length
    assert encoded == {"x" * MAX_CHARACTERS: 1, "x" * (MAX_CHARACTERS + 1): 2}
