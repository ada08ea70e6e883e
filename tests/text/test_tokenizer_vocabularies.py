"""Real vocabularies encode and decode as llama.cpp does."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from tokenizers import models

from graphml.text.tokenizer import PRE_TOKENIZERS, Tokenizer, byte_bpe, load_tokenizer
from graphml.text.tokenizer.pre_tokenizers import PreTokenizer
from graphml.text.tokenizer.streaming import clean_spaces
from graphml.text.tokenizer.vocabulary import Vocabulary
from tests.looped import looped
from tests.text.vocabularies import ALL, DATA, WHOLE, byte_pair, metadata, pairs_vocabulary, recorded

Loader = Callable[[str], Tokenizer]


@looped("name", WHOLE)
def test_ids_are_those_of_llama_cpps_own_test(name: str, tokenizer: Loader) -> None:
    texts = (DATA / f"{name}.inp").read_bytes().decode().split("\n__ggml_vocab_test__\n")
    lines = (DATA / f"{name}.out").read_text().splitlines()
    assert len(lines) == 46
    assert texts.pop() == "", "the last text is followed by a separator, too"
    for text, line in zip(texts, lines, strict=True):
        assert tokenizer(name).encode(text, add_special=False) == [int(word) for word in line.split()], text


@pytest.mark.parametrize("name", ALL)
def test_random_texts_give_the_recorded_ids(name: str, tokenizer: Loader) -> None:
    loaded = tokenizer(name)
    for text, ids, _ in recorded(name)["cases"]:
        got = {
            f"{add:d}{parse:d}": loaded.encode(text, add_special=add, parse_special=parse)
            for add in (False, True)
            for parse in (False, True)
        }
        assert got == ids, text


@pytest.mark.parametrize("name", ALL)
def test_ids_give_the_recorded_texts_at_once_and_as_a_stream(name: str, tokenizer: Loader) -> None:
    loaded = tokenizer(name)
    for _, ids, texts in recorded(name)["cases"]:
        wanted = iter(texts)
        for flags in ("00", "11"):
            for skip in (False, True):
                text, decoded = next(wanted), loaded.decode(ids[flags], skip_special=skip)
                # Some are recorded with llama_detokenize's cleaning, which changes what a model writes:
                # `git add .` loses its space. Servers send the pieces as they are, and so does this.
                assert text in (decoded, clean_spaces(decoded.encode()).decode())
                stream = loaded.stream(skip_special=skip)
                assert "".join(map(stream.push, ids[flags])) + stream.flush() == decoded


@pytest.mark.parametrize("name", [name for name in ALL if "bert" not in name])
def test_a_text_keeps_its_spaces(name: str, tokenizer: Loader) -> None:
    text = "git add . && cd .. ; print 'a' , it 's [1 , 2] ?"
    loaded = tokenizer(name)
    ids = loaded.encode(text, add_special=False)
    stream = loaded.stream()
    assert loaded.decode(ids).strip() == text
    assert ("".join(map(stream.push, ids)) + stream.flush()).strip() == text


@pytest.mark.parametrize("name", ALL)
def test_special_ids_are_the_recorded_ones(name: str, tokenizer: Loader) -> None:
    loaded, facts = tokenizer(name), recorded(name)
    assert loaded.n_vocab == facts["n_vocab"]
    assert (loaded.bos, loaded.eos) == tuple(
        None if facts[role] < 0 else facts[role] for role in ("bos", "eos")
    )
    assert sorted(loaded.end_tokens) == facts["ends"]
    assert [token for token in range(loaded.n_vocab) if loaded.is_special(token)] == facts["hidden"]
    assert loaded.eot is None or loaded.eot in loaded.end_tokens


def test_every_pre_tokenizer_cuts_as_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """All have one vocabulary, whose 65,536 merges are made into a model once."""
    record = recorded("pre")
    assert record["names"].keys() == PRE_TOKENIZERS.keys() - {"whitespace"}
    assert len(record["rows"]) >= 29, "the texts must tell the pre-tokenizers apart"
    vocabulary = metadata(pairs_vocabulary())
    make, made = byte_bpe._merging_model, dict[Any, models.BPE]()

    def once(known: Vocabulary, merges: list[str]) -> models.BPE:
        key = tuple(known.ids.items()), tuple(merges)
        if key not in made:
            made[key] = make(known, merges)
        return made[key]

    monkeypatch.setattr(byte_bpe, "_merging_model", once)
    loaded: dict[PreTokenizer, Tokenizer] = {}
    for name, row in record["names"].items():
        rules = PRE_TOKENIZERS[name]
        if rules not in loaded:
            loaded[rules] = load_tokenizer(vocabulary, pre=name)
        for text, ids in zip(record["texts"], record["rows"][row], strict=True):
            assert loaded[rules].encode(text, add_special=False) == ids, (name, text)


def test_a_table_of_replacements_normalises(tokenizer: Loader) -> None:
    loaded = tokenizer("nomic-bert-moe")
    plain = loaded.encode("first 1/2 Angstrom", add_special=False)
    assert loaded.encode("ﬁrst  1⁄2\tAngstrom ", add_special=False)[:2] == plain[:2]
    assert loaded.decode(plain) == "first 1/2 Angstrom"


@pytest.mark.parametrize("name", ["gpt-2", "llama-spm", "bert-bge", "gemma-4", "llama-bpe"])
@pytest.mark.parametrize("letter", [" ", "1", "a", "\n", "<", "字", " '"])
def test_a_long_run_of_one_character_takes_no_quadratic_time(
    name: str, letter: str, tokenizer: Loader
) -> None:
    """Sixteen times the text: quadratic time would be 256 times as much of the processor, 64 is allowed."""
    loaded = tokenizer(name)
    short = min(_seconds(loaded, letter * 4_000) for _ in range(3))
    assert any(_seconds(loaded, letter * 64_000) < 64 * short + 0.5 for _ in range(3))


def _seconds(loaded: Tokenizer, text: str) -> float:
    """Of this process alone, however busy the machine is."""
    start = time.process_time()
    loaded.decode(loaded.encode(text, parse_special=True))
    return time.process_time() - start


def test_a_long_word_has_the_ids_of_its_merges_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library merges long words by a way of its own, without the interpreter's lock."""
    tokenizer = load_tokenizer(byte_pair(merges=("a b", "ab ab")))
    words = ["ab" * 40, "a" * 77, "é" * 30]
    expected = [tokenizer.encode(word) for word in words]
    monkeypatch.setattr(byte_bpe, "LONG_WORD", 8)
    other = load_tokenizer(byte_pair(merges=("a b", "ab ab")))
    assert [other.encode(word) for word in words] == expected
    assert tokenizer.longest_token == max(len(tokenizer.piece_bytes(one)) for one in range(tokenizer.n_vocab))
