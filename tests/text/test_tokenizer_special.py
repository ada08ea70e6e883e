"""Special tokens: which are found in a text, what is put around it, and what ends a generation."""

from __future__ import annotations

import pytest

from graphml.errors import TokenizerError
from graphml.text.tokenizer import load_tokenizer
from graphml.text.tokenizer.tokenizer import SpecialToken, SpecialTokens
from tests.text.vocabularies import CONTROL, NORMAL, USER_DEFINED, byte_pair, scored

EXTRA = (("<|im_end|>", CONTROL), ("<tool>", USER_DEFINED), ("<too", USER_DEFINED), ("</s>", NORMAL))


def found(text: str, *tokens: tuple[str, bool, bool]) -> list[str | int]:
    return SpecialTokens(
        SpecialToken(token, index, left, right) for index, (token, left, right) in enumerate(tokens)
    ).split(text)


def test_control_tokens_are_text_unless_asked_for() -> None:
    tokenizer = load_tokenizer(byte_pair(*EXTRA))
    end, tool = tokenizer.n_vocab - 4, tokenizer.n_vocab - 3
    text = "a<|im_end|>b<tool>"
    with_special = tokenizer.encode(text, add_special=False, parse_special=True)
    assert with_special.count(end) == 1
    assert with_special[-1] == tool
    plain = tokenizer.encode(text, add_special=False)
    assert end not in plain
    assert plain[-1] == tool, "user-defined tokens are always found"
    assert tokenizer.decode(plain) == tokenizer.decode(with_special) == text
    assert tokenizer.decode(with_special, skip_special=True) == "ab<tool>"


def test_the_longest_token_goes_first_through_the_whole_text() -> None:
    assert found("xabcdx", ("bc", False, False), ("abc", False, False), ("cdx", False, False)) == [
        "x",
        1,
        "dx",
    ]
    assert found("abcd bcd", ("abc", False, False), ("bcd", False, False)) == [0, "d ", 1]
    # A longer token further right takes what a shorter one to its left would have begun.
    assert found("abcde", ("ab", False, False), ("bcde", False, False)) == ["a", 1]


def test_whitespace_beside_a_token_goes_with_it() -> None:
    assert found("a \n<m> b", ("<m>", True, False)) == ["a", 0, " b"]
    assert found("a <m> \t\nb <m>  ", ("<m>", False, True)) == ["a ", 0, "b ", 0]
    assert found("  <m>", ("<m>", True, False)) == [0]
    assert found("\u3000<m>", ("<m>", True, False)) == ["\u3000", 0], "only ASCII whitespace"


def test_phi3_tokens_take_the_whitespace_after_them() -> None:
    rows = (("<|end|>", 0.0, CONTROL), ("▁a", -1.0, NORMAL), ("a", -2.0, NORMAL))
    for name, wanted in (("Phi-3 mini", ["<|end|>", " a"]), ("other", ["<|end|>", " ", " a"])):
        tokenizer = load_tokenizer(scored(*rows, ("▁", -3.0, NORMAL), **{"general.name": name}))
        ids = tokenizer.encode("<|end|> a", add_special=False, parse_special=True)
        assert [tokenizer.piece(token) for token in ids] == wanted


def test_what_is_put_around_a_text() -> None:
    plain = load_tokenizer(byte_pair(*EXTRA, bos_token_id=1, eos_token_id=2))
    assert plain.encode("a") == plain.encode("a", add_special=False)
    both = load_tokenizer(byte_pair(bos_token_id=1, eos_token_id=2, add_bos_token=True, add_eos_token=True))
    assert both.encode("a") == [1, *both.encode("a", add_special=False), 2]
    assert both.encode("") == [1, 2]
    spm = load_tokenizer(scored(("▁", -1.0, NORMAL)))
    assert spm.encode("") == [1]
    assert spm.encode("", add_special=False) == []


def test_a_missing_begin_token_is_an_error_only_where_it_is_wanted() -> None:
    tokenizer = load_tokenizer(byte_pair(pre="glm4", add_bos_token=True))
    assert tokenizer.bos is None
    assert tokenizer.encode("a", add_special=False)
    with pytest.raises(TokenizerError, match="bos_token_id"):
        tokenizer.encode("a")


def test_tokens_that_end_a_generation() -> None:
    tokenizer = load_tokenizer(byte_pair(*EXTRA, eos_token_id=5))
    end, s_end = tokenizer.n_vocab - 4, tokenizer.n_vocab - 1
    assert tokenizer.eot == end
    assert tokenizer.end_tokens == {5, end, s_end}
    assert tokenizer.is_special(s_end), "the text of an end token tells, whatever its type"


def test_an_end_that_only_ends_a_message() -> None:
    texts = ("<|return|>", "<|call|>", "<|end|>", "<|channel|>")
    tokenizer = load_tokenizer(byte_pair(*((text, CONTROL) for text in texts), eos_token_id=5))
    first = tokenizer.n_vocab - len(texts)
    assert tokenizer.end_tokens == {5, first, first + 1}
    assert not tokenizer.is_special(first + 2)
    assert not tokenizer.is_special(first + 3)


def test_stated_ids_win_and_ids_out_of_range_do_not_count_and_are_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tokenizer = load_tokenizer(byte_pair(*EXTRA, eot_token_id=7, eos_token_id=10**6))
    assert (tokenizer.eot, tokenizer.eos) == (7, 11)
    assert "tokenizer.ggml.eos_token_id: wanted an id below" in caplog.text
    assert "got 1000000: 11 is taken" in caplog.text
