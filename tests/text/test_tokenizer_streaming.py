"""Streams give what decoding gives, piece by piece; round trips where a kind guarantees them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphml.text.tokenizer import Tokenizer, load_tokenizer
from graphml.text.tokenizer.streaming import Stream, clean_spaces
from tests.text.vocabularies import CONTROL, byte_pair, metadata, pairs_vocabulary

Loader = Callable[[str], Tokenizer]
KINDS = ("gpt-2", "llama-spm", "bert-bge", "deepseek-coder", "gemma-4", "nomic-bert-moe")
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
TRICKY = st.text(st.sampled_from(list(" '.,!?smrevtd\nx")), max_size=40)


@pytest.mark.parametrize("name", KINDS)
@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_a_stream_of_any_ids_is_their_text(name: str, tokenizer: Loader, data: st.DataObject) -> None:
    loaded = tokenizer(name)
    ids = data.draw(st.lists(st.integers(0, loaded.n_vocab - 1), max_size=30))
    skip = data.draw(st.booleans())
    stream = loaded.stream(skip_special=skip)
    assert "".join(map(stream.push, ids)) + stream.flush() == loaded.decode(ids, skip_special=skip)


@settings(deadline=None, max_examples=300)
@given(text=TRICKY, cuts=st.lists(st.integers(0, 40), max_size=6))
def test_cleaning_spaces_piece_by_piece_is_cleaning_the_whole(text: str, cuts: list[int]) -> None:
    loaded = _bytes_tokenizer()
    ids = [token for part in _parts(text, cuts) for token in loaded.encode(part)]
    stream = Stream(replace(loaded._decoding, clean_spaces=True), skip_special=False)
    assert "".join(map(stream.push, ids)) + stream.flush() == clean_spaces(text.encode()).decode()


@pytest.mark.parametrize("name", ["deepseek-coder", "llama-bpe", "gemma-4", "llama-spm"])
@settings(deadline=None, max_examples=100)
@given(text=ANY_TEXT)
def test_a_stream_never_shows_half_a_character(name: str, tokenizer: Loader, text: str) -> None:
    loaded = tokenizer(name)
    text = text.replace("\ufffd", "")
    stream = loaded.stream()
    for token in loaded.encode(text, add_special=False):
        assert "\ufffd" not in stream.push(token)
    assert "\ufffd" not in stream.flush()


@pytest.mark.parametrize("name", ["deepseek-coder", "qwen2", "llama-spm", "gemma-4"])
@settings(deadline=None, max_examples=100)
@given(text=ANY_TEXT)
def test_decoding_gives_the_text_back(name: str, tokenizer: Loader, text: str) -> None:
    loaded = tokenizer(name)
    if name in ("llama-spm", "gemma-4"):  # these spell a space as U+2581, so that letter comes back as one
        text = text.replace("\u2581", "")
    assert loaded.decode(loaded.encode(text, add_special=False)) == text


def test_what_is_held_back_comes_with_the_next_token(tokenizer: Loader) -> None:
    loaded = tokenizer("deepseek-coder")
    ids = loaded.encode("🦙", add_special=False)
    assert len(ids) > 1
    stream = loaded.stream()
    assert [stream.push(token) for token in ids] == [""] * (len(ids) - 1) + ["🦙"]
    half = loaded.stream()
    assert half.push(ids[0]) == ""
    assert half.flush() == "\ufffd"
    assert half.push(loaded.encode("a", add_special=False)[0]) == "a", "after a flush it begins anew"


def test_the_first_space_of_a_text_is_the_tokenizers_own(tokenizer: Loader) -> None:
    loaded = tokenizer("llama-spm")
    ids = loaded.encode("Hello world", add_special=False)
    assert loaded.decode(ids) == "Hello world"
    assert loaded.piece(ids[0]) == " Hello"
    assert loaded.decode([1, *ids], skip_special=True) == " Hello world", (
        "as llama.cpp does after a begin token"
    )


def test_pieces_are_bytes() -> None:
    loaded = _bytes_tokenizer()
    euro = loaded.encode("€")
    assert b"".join(map(loaded.piece_bytes, euro)) == "€".encode()
    assert loaded.piece(euro[0]) == "\ufffd"


def test_a_lone_surrogate_counts_as_a_replacement_character(tokenizer: Loader) -> None:
    for name in KINDS:
        loaded = tokenizer(name)
        assert loaded.encode("a\ud800b") == loaded.encode("a\ufffdb")
        assert loaded.encode("\ud83e\udd99") == loaded.encode("🦙")


def test_letters_that_stand_for_no_byte_are_spelled_out() -> None:
    loaded = load_tokenizer(byte_pair(("中a", 1), ("<|end|>", CONTROL)))
    assert loaded.piece(loaded.n_vocab - 2) == "[UNK_BYTE_0xe4b8ad中a]a"


def _parts(text: str, cuts: list[int]) -> list[str]:
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    return [text[start:end] for start, end in pairwise(places)]


_LOADED: list[Tokenizer] = []


def _bytes_tokenizer() -> Tokenizer:
    """Byte-level; made once."""
    if not _LOADED:
        _LOADED.append(load_tokenizer(metadata(pairs_vocabulary()), pre="gpt-2"))
    return _LOADED[0]
