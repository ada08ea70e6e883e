"""Damaged, hostile and unsupported vocabularies are refused in words that name the key."""

from __future__ import annotations

import time
from typing import Any

import pytest

from graphml.errors import GraphmlError, TokenizerError, UsageError, WeightsError
from graphml.text.tokenizer import load_tokenizer
from graphml.text.tokenizer.unigram import read_charsmap
from tests.looped import looped
from tests.text.vocabularies import BYTE, NORMAL, UNKNOWN, byte_pair, metadata, scored


def unigram(**values: Any) -> dict[str, Any]:
    tokens = ["<pad>", "</s>", "<unk>", "▁", "a", "b", "ab", "▁a"]
    scores = [0.0, 0.0, 0.0, -2.0, -3.0, -3.0, -4.0, -2.5]
    types = [3, 3, 2, 1, 1, 1, 1, 1]
    return {"model": "t5", "tokens": tokens, "scores": scores, "token_type": types} | values


def test_an_unknown_pre_tokenizer_names_the_nearest_and_the_argument() -> None:
    with pytest.raises(TokenizerError, match=r"'qwen3'.*qwen2.*pre="):
        load_tokenizer(byte_pair(pre="qwen3"))
    with pytest.raises(TokenizerError, match="'nonsense'"):
        load_tokenizer(byte_pair(), pre="nonsense")
    assert load_tokenizer(byte_pair(pre="qwen3"), pre="qwen2").pre == "qwen2"


def test_a_file_without_pre_tokenizer_is_cut_as_default(caplog: pytest.LogCaptureFixture) -> None:
    values = {key: value for key, value in byte_pair().items() if key != "tokenizer.ggml.pre"}
    assert load_tokenizer(metadata(values)).pre == "default"
    assert "default" in caplog.text


def test_pre_is_refused_where_nothing_is_cut() -> None:
    with pytest.raises(UsageError, match="llama"):
        load_tokenizer(scored(("▁", 0.0, NORMAL)), pre="gpt-2")


@pytest.mark.parametrize("model", ["no_vocab", "none"])
def test_without_a_vocabulary_every_use_says_so(model: str) -> None:
    tokenizer = load_tokenizer(metadata({"model": model, "general.architecture": "x", "x.vocab_size": 99}))
    assert tokenizer.n_vocab == 99
    assert (tokenizer.bos, tokenizer.eos, tokenizer.end_tokens) == (None, None, frozenset())
    uses = (
        lambda: tokenizer.encode(""),
        lambda: tokenizer.encode("a", add_special=False),
        lambda: tokenizer.decode([1]),
        lambda: tokenizer.piece(1),
        lambda: tokenizer.stream().push(1),
    )
    for use in uses:
        with pytest.raises(TokenizerError, match="no tokenizer"):
            use()


@looped("model", ["test", "wordcount"])
def test_models_that_are_unknown_are_named(model: str) -> None:
    with pytest.raises(TokenizerError, match=rf"'{model}' is unknown; known: llama, gpt2"):
        load_tokenizer(metadata({"model": model, "tokens": ["a"]}))


OF_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


@looped(
    "values, message",
    [
        (
            {"model": "rwkv", "tokens": ["<s>", *map(chr, range(32, 92))]},
            "a token for each byte is wanted, 0x00",
        ),
        ({"model": "rwkv", "tokens": ["<s>", "\\xg1"]}, "wants two hexadecimal digits"),
        ({"model": "rwkv", "tokens": ["<s>", "\\x"]}, "wants two hexadecimal digits"),
        ({"model": "rwkv", "tokens": ["<s>", "\\x1"]}, "wants two hexadecimal digits"),
        ({"model": "rwkv", "tokens": ["<s>", "\\x+1"]}, "wants two hexadecimal digits"),
        (
            {"model": "plamo2", "tokens": OF_BYTES[:-1], "scores": [0.0] * 255, "token_type": [BYTE] * 255},
            "byte token <0xFF> is not there",
        ),
        ({"model": "hybriddna", "pre": "gpt-2", "tokens": ["a"]}, "merges"),
    ],
)
def test_vocabularies_that_cannot_spell_every_text_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(GraphmlError, match=message):
        load_tokenizer(metadata(values))


def test_an_id_out_of_range_is_named() -> None:
    tokenizer = load_tokenizer(byte_pair())
    for token in (-1, tokenizer.n_vocab):
        with pytest.raises(TokenizerError, match=f"{token}"):
            tokenizer.decode([0, token])
        with pytest.raises(TokenizerError):
            tokenizer.is_special(token)


@looped(
    ("values", "said"),
    [
        ({"tokens": ["a", "b", "a"], "token_type": [1, 1, 1]}, "'a' stands there twice"),
        ({"tokens": ["x" * 70_000], "token_type": [1]}, "characters per token"),
        ({"token_type": [1]}, "types, one per token"),
        ({"tokenizer.ggml.merges": ["a b"]}, "'a b'"),
        ({"tokenizer.ggml.merges": ["ab"]}, "'ab'"),
        ({"tokenizer.ggml.merges": [""]}, "''"),
        ({"tokenizer.ggml.merges": ["zz b"]}, "'zz b'"),
        ({"scores": [1.0]}, "scores, one per token"),
    ],
)
def test_a_damaged_byte_pair_vocabulary(values: dict[str, Any], said: str) -> None:
    with pytest.raises(TokenizerError, match=said):
        load_tokenizer(byte_pair(**values))


def test_missing_keys_are_named() -> None:
    with pytest.raises(WeightsError, match=r"tokenizer\.ggml\.model"):
        load_tokenizer(metadata({"general.architecture": "llama"}))
    with pytest.raises(WeightsError, match=r"tokenizer\.ggml\.merges"):
        load_tokenizer(metadata({"model": "gpt2", "pre": "gpt-2", "tokens": ["a"]}))
    with pytest.raises(TokenizerError, match="unknown_token_id"):
        load_tokenizer(metadata({"model": "bert", "tokens": ["a"]}))
    with pytest.raises(TokenizerError, match="not a number"):
        load_tokenizer(scored(("a", float("nan"), NORMAL)))


def test_a_byte_token_must_tell_its_byte() -> None:
    tokenizer = load_tokenizer(scored(("<0xZZ>", 0.0, BYTE)))
    with pytest.raises(TokenizerError, match="<0xZZ>"):
        tokenizer.piece(tokenizer.n_vocab - 1)


def test_characters_without_a_token() -> None:
    letters = metadata(
        {"model": "llama", "tokens": ["<unk>", "▁", "a"], "scores": [0.0] * 3, "token_type": [2, 1, 1]}
    )
    assert load_tokenizer(letters).encode("ab", add_special=False) == [1, 2, 0], "no bytes: the unknown token"
    nothing = metadata({"model": "gpt2", "pre": "gpt-2", "tokens": ["a", "b", "ab"], "merges": ["a b"]})
    # Left out, but what stood on its sides does not merge over it.
    assert load_tokenizer(nothing).encode("aXb", add_special=False) == [0, 1]
    assert load_tokenizer(nothing).encode("ab", add_special=False) == [2]
    plain = byte_pair(("<0xE4>", BYTE), ("<0xAD>", BYTE), pre="sarvam-moe")
    tokenizer = load_tokenizer(plain)
    assert [tokenizer.piece_bytes(token) for token in tokenizer.encode("中")] == [b"\xe4", b"\xad"]


def test_equal_scores_merge_from_the_left_and_pairs_may_be_of_unknown_letters() -> None:
    tokenizer = load_tokenizer(scored(("xy", -1.0, NORMAL), ("yx", -1.0, NORMAL), add_space_prefix=False))
    assert [tokenizer.piece(token) for token in tokenizer.encode("xyx", add_special=False)] == ["xy", "x"]
    assert [tokenizer.piece(token) for token in tokenizer.encode("yxy", add_special=False)] == ["yx", "y"]


def test_a_token_with_a_space_inside_merges_across_words() -> None:
    rows = [(letter, -9.0, NORMAL) for letter in "▁ab"] + [("b▁", -1.0, NORMAL), ("b▁a", -0.5, NORMAL)]
    tokenizer = load_tokenizer(scored(*rows, add_space_prefix=False))
    assert [tokenizer.piece(token) for token in tokenizer.encode("ab ab", add_special=False)] == [
        "a",
        "b a",
        "b",
    ]


def test_unigram_takes_the_best_path_and_joins_unknown_characters() -> None:
    tokenizer = load_tokenizer(metadata(unigram(add_space_prefix=True)))
    tie = unigram(add_space_prefix=True, scores=[0.0, 0.0, 0.0, -2.0, -3.0, -3.0, -3.5, -2.5])
    assert load_tokenizer(metadata(tie)).encode("ab", add_special=False) == [3, 6], "the first of equal paths"
    assert tokenizer.encode("ab", add_special=False) == [7, 5]
    assert tokenizer.encode("aXYZb</s>", add_special=False) == [7, 2, 5, 2], "a control token's text is text"
    assert tokenizer.encode("a  b") == [7, 3, 3, 5, 1]
    assert load_tokenizer(metadata(unigram(remove_extra_whitespaces=True))).encode(" a  b ") == [7, 3, 5, 1]


@looped(
    "blob",
    [[], [1, 0, 0], [8, 0, 0, 0, 1, 2], [255, 255, 255, 127, *[0] * 60], [0, 0, 0, 0, 1, 2, 3, 4]],
)
def test_a_table_of_replacements_that_is_cut_short(blob: list[int]) -> None:
    with pytest.raises(TokenizerError, match="precompiled_charsmap"):
        read_charsmap(blob)


def test_a_table_of_replacements_that_points_outside() -> None:
    wild = read_charsmap([4, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0x7F, 1, 0])
    with pytest.raises(TokenizerError, match="unit"):
        wild.longest(b"abc", 0)


def test_hostile_sizes_take_bounded_time() -> None:
    start = time.perf_counter()
    long_tokens = [("<" * length, UNKNOWN) for length in range(2, 60)]
    tokenizer = load_tokenizer(byte_pair(*long_tokens))
    tokenizer.encode("<" * 20_000, parse_special=True)
    merges = tuple(f"{'a' * size} a" for size in range(1, 200))
    load_tokenizer(byte_pair(merges=merges)).encode("a" * 20_000)
    assert time.perf_counter() - start < 60  # no hang


def test_every_error_is_one_of_ours() -> None:
    for values in (
        {"tokens": []},
        {"tokens": ["a"], "merges": ["\ud800 a"]},
        {"pre": ""},
        {"bos_token_id": -5},
    ):
        try:
            load_tokenizer(byte_pair(**values)).encode("a b")
        except GraphmlError:
            continue


def test_what_is_no_text_or_no_id_is_refused() -> None:
    tokenizer = load_tokenizer(byte_pair())
    wrong: Any
    for wrong in (None, 5, b"ab", ["a"]):
        with pytest.raises(UsageError, match=f"text: wanted text, got {type(wrong).__name__}"):
            tokenizer.encode(wrong)
    for wrong in ("a", None, 1.0, True):
        uses = (
            lambda wrong=wrong: tokenizer.decode([wrong]),
            lambda wrong=wrong: tokenizer.piece(wrong),
            lambda wrong=wrong: tokenizer.is_special(wrong),
        )
        for use in uses:
            with pytest.raises(UsageError, match="token id: wanted a whole number"):
                use()
