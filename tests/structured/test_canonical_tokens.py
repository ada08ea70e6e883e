"""Keys, enums, choices and frames are written in the tokenizer's own tokens, on every recorded vocabulary."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

import numpy as np
import pytest

from graphml.sampling import SamplingParams
from graphml.sampling.structured import Matcher, TokenBytes, grammar
from graphml.sampling.structured.canonical_tokens import CanonicalTokens
from graphml.sampling.structured.literal_texts import Literal, literal_texts
from graphml.sampling.structured.opened_tokens import tokens_of
from graphml.sampling.structured.packed_masks import unpacked
from graphml.sampling.structured.params_structure import compiled_structure, matcher_of
from graphml.text.tokenizer import Tokenizer, load_tokenizer
from tests.text.vocabularies import WHOLE, recorded_metadata

GENERATIVE = [name for name in (*WHOLE, "gemma-4") if "bert" not in name]
WORDS = [
    *("city", "country", "continent", "first_name", "last", "name", "age", "is_active", "New", "York", "The"),
    *(
        "United",
        "Kingdom",
        "naïve",
        "café",
        "Zürich",
        "東京",
        "привет",
        "status",
        "in_progress",
        "done",
        "high",
    ),
    *("low", "cancelled", "très_important", "x", "yes", "no", "true", "international", "inter"),
]
GBNF = r"""
root ::= "{" ws "\"city\"" ws ":" ws ("\"Europe\"" | "\"East Asia\"") ws (", " other)? "}"
other ::= "\"country\": " [0-9]+ | "\"continent\": true"
ws ::= [ \t\n]*
"""
Loader = Callable[[str], Tokenizer]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Loader:
    folder = tmp_path_factory.mktemp("vocabularies")
    return cache(lambda name: load_tokenizer(recorded_metadata(name, folder)))


def some_words(numbers: random.Random, most: int = 3) -> str:
    return " ".join(numbers.sample(WORDS, numbers.randint(1, most)))


def schema_at_random(numbers: random.Random) -> dict[str, Any]:
    kinds: list[Callable[[], Mapping[str, Any]]] = [
        lambda: {"enum": [some_words(numbers) for _ in range(numbers.randint(1, 6))]},
        lambda: {"type": "boolean"},
        lambda: {"const": some_words(numbers, 4)},
    ]
    properties = {name: numbers.choice(kinds)() for name in numbers.sample(WORDS, numbers.randint(2, 6))}
    required = [name for name in properties if numbers.random() < 0.6]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def fixed_texts(numbers: random.Random) -> Iterator[SamplingParams]:
    """Structures that have literals alone."""
    for _ in range(12):
        compact = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
        lark = f"start: %json {json.dumps({'x-guidance': compact, **schema_at_random(numbers)})}"
        yield SamplingParams(grammar=f"%llguidance {{}}\n{lark}")
        choices = tuple(dict.fromkeys(some_words(numbers) for _ in range(8)))
        yield SamplingParams(choices=choices)
        yield SamplingParams(grammar="root ::= " + " | ".join(map(json.dumps, choices)))
        yield SamplingParams(regex="(" + "|".join(choices) + ")!?")


def allowed_tokens(matcher: Matcher) -> list[int]:
    return np.flatnonzero(unpacked(matcher.bits(), matcher.n)).tolist()


@pytest.mark.parametrize("name", GENERATIVE)
def test_whatever_is_chosen_of_literals_is_written_as_the_tokenizer_writes_it(
    name: str, tokenizer: Loader
) -> None:
    vocabulary, numbers = tokens_of(tokenizer(name)), random.Random(1)
    n_chosen = 0
    for params in fixed_texts(numbers):
        start = matcher_of(params, tokenizer(name))
        assert start is not None
        for _ in range(2):
            matcher = start.copy()
            while (token := numbers.choice(allowed_tokens(matcher))) not in matcher.eog:
                n_chosen += len(allowed_tokens(matcher)) > 1
                matcher.accept(token)
            text = b"".join(vocabulary.pieces[one] for one in matcher.accepted)
            assert list(matcher.accepted) == vocabulary.ids_behind((), text), text
    assert n_chosen > 100


@pytest.mark.parametrize("name", GENERATIVE)
def test_every_text_can_be_written_in_the_tokenizers_own_tokens(name: str, tokenizer: Loader) -> None:
    vocabulary, numbers = tokens_of(tokenizer(name)), random.Random(2)
    for _ in range(12):
        schema = schema_at_random(numbers)
        schema["properties"] |= {"about": {"type": "string"}, "n": {"type": "integer"}}
        schema["properties"]["list"] = {"type": "array", "items": {"enum": ["a", "ab", "é b"]}}
        start = matcher_of(SamplingParams(json_schema=schema), tokenizer(name))
        assert start is not None
        document = {key: value.get("const", True) for key, value in schema["properties"].items()}
        document |= {key: value["enum"][0] for key, value in schema["properties"].items() if "enum" in value}
        document |= {"about": some_words(numbers), "n": numbers.randint(-9, 10**9), "list": ["ab", "é b"]}
        for layout in ({}, {"separators": (",", ":")}, {"indent": 2}, {"indent": "\t"}):
            text = json.dumps(document, ensure_ascii=False, **layout)  # type: ignore[arg-type]
            matcher = start.copy()
            for token in vocabulary.ids_behind((), text.encode()):
                assert token in allowed_tokens(matcher), (text, vocabulary.pieces[token])
                matcher.accept(token)
            assert matcher.may_end()


def test_other_tokens_that_fit_are_accepted_but_never_proposed(tokenizer: Loader) -> None:
    vocabulary = tokens_of(tokenizer("gpt-2"))
    (city,) = vocabulary.ids_behind((), b"city")
    letter = vocabulary.of_byte[ord("c")]
    assert letter is not None
    for params in (SamplingParams(choices=("city", "center")), SamplingParams(grammar='root ::= "city"+')):
        matcher = matcher_of(params, tokenizer("gpt-2"))
        assert matcher is not None
        assert city in allowed_tokens(matcher)
        assert letter not in allowed_tokens(matcher)
        matcher.accept(letter)
        for byte in b"ity":
            token = vocabulary.of_byte[byte]
            assert token is not None
            matcher.accept(token)
        assert matcher.may_end()
        matcher.rewind(4)
        assert city in allowed_tokens(matcher)
        assert letter not in allowed_tokens(matcher)


def test_a_matcher_that_goes_back_and_on_allows_what_a_new_one_does(tokenizer: Loader) -> None:
    numbers = random.Random(3)
    params = SamplingParams(json_schema=schema_at_random(numbers))
    start = matcher_of(params, tokenizer("gpt-2"))
    assert start is not None
    matcher = start.copy()
    for _ in range(200):
        tokens = [one for one in allowed_tokens(matcher) if one not in matcher.eog]
        if not tokens or numbers.random() < 0.3:
            matcher.rewind(numbers.randint(0, len(matcher.accepted)))
        else:
            matcher.accept(numbers.choice(tokens))
        if numbers.random() < 0.2:
            matcher = matcher.copy()
        again = start.copy()
        again.catch_up(matcher.accepted, len(matcher.accepted))
        assert allowed_tokens(again) == allowed_tokens(matcher)


def test_another_text_of_as_many_tokens_is_read_ahead_from_its_own_place(tokenizer: Loader) -> None:
    start = matcher_of(
        SamplingParams(choices=("city of lights", "city indeed", "town by the sea", "town at night")),
        tokenizer("gpt-2"),
    )
    assert start is not None
    matcher = start.copy()
    for text in ("city", "town", "city"):
        ids = tokens_of(tokenizer("gpt-2")).ids_behind((), text.encode())
        again = start.copy()
        for one in (matcher, again):
            one.rewind(len(one.accepted))
            for token in ids:
                one.accept(token)
        allowed_tokens(matcher)  # reads ahead from here
        other = again.copy()
        assert allowed_tokens(other) == allowed_tokens(matcher)
        matcher.rewind(len(ids))


def test_places_that_cannot_be_read_ahead_keep_their_masks(
    tokenizer: Loader, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpt2 = tokenizer("gpt-2")
    choices = ("city by the long river", "country by the old sea", "continent by the ice")
    params = SamplingParams(choices=choices)
    matcher = matcher_of(params, gpt2)
    assert matcher is not None
    walk = matcher._progress.walk(())
    assert walk is not None
    walk._matcher.consume_token(matcher.eog[0])  # type: ignore[attr-defined] # an error, as of a limit
    assert literal_texts(walk) is None
    assert len(walk.ways()[0]) == 256
    assert len(allowed_tokens(matcher)) > 3
    monkeypatch.setattr("graphml.sampling.structured.gbnf_grammar.MAX_STATES", 40)
    grammar_of_choices = SamplingParams(grammar="root ::= " + " | ".join(map(json.dumps, choices)))
    matcher = matcher_of(grammar_of_choices, gpt2)
    assert matcher is not None
    for token in tokens_of(gpt2).ids_behind((), choices[1].encode()):
        assert token in allowed_tokens(matcher)
        matcher.accept(token)


def test_llama_cpps_random_numbers_meet_llama_cpps_masks(tokenizer: Loader) -> None:
    letter = tokens_of(tokenizer("gpt-2")).of_byte[ord("c")]
    matcher = matcher_of(SamplingParams(grammar='root ::= "city"', rng="llama.cpp"), tokenizer("gpt-2"))
    assert matcher is not None
    assert letter in allowed_tokens(matcher)
    assert grammar('root ::= "city"', vocab=tokenizer("gpt-2")).mask()[letter]  # and so do plain matchers


def test_a_run_of_spaces_goes_on_only_in_the_tokenizers_own_tokens(tokenizer: Loader) -> None:
    vocabulary = tokens_of(tokenizer("llama-bpe"))
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    start = matcher_of(SamplingParams(json_schema=schema), tokenizer("llama-bpe"))
    assert start is not None
    for pieces, goes_on, ends in (
        ([b"{", b"\n", b"   "], b" ", b' "'),
        ([b"{", b"\n", b"\t", b"\t"], b"\t", b'"'),
        ([b'{"', b"city", b'":'], b" ", b' "'),
        ([b'{"', b"city", b'"'], b" ", b":"),  # the tokenizer has `":`, but a model that wrote `"` goes on
    ):
        matcher = start.copy()
        for piece in pieces:
            matcher.accept(vocabulary.pieces.index(piece))
        texts = [vocabulary.pieces[one] for one in allowed_tokens(matcher)]
        assert goes_on not in texts, pieces
        assert ends in texts, pieces


def test_control_tokens_stand_between_literals() -> None:
    pieces = (b"<end>", b"<call>", *(bytes([one]) for one in b"abc"), b"ab", b"abc", b"bc")
    controls = frozenset([0, 1])

    def encode(text: str) -> list[int]:
        """The longest tokens from the left on."""
        ids, data = list[int](), text.encode().lstrip(b"\n")
        while data:
            ids.append(max((i for i, one in enumerate(pieces) if data.startswith(one)), key=len_of))
            data = data[len(pieces[ids[-1]]) :]
        return ids

    def len_of(token: int) -> int:
        return len(pieces[token])

    words = TokenBytes(pieces, frozenset([0]), controls, lambda text: 1 if text == "<call>" else None, encode)
    structure = compiled_structure("lark", 'start: "ab" (<[1]> | "c") "abc"', words)
    matcher = Matcher(structure.begin(), words, canonical=CanonicalTokens(words))
    spelled = []
    for token in (5, 1, 6):
        spelled.append([pieces[one] for one in allowed_tokens(matcher)])
        matcher.accept(token)
    assert spelled == [[b"ab", b"abc"], [b"<call>", b"c"], [b"abc"]]
    assert matcher.may_end()


def test_literals_are_read_up_to_free_text_and_the_place_stays() -> None:
    matcher = grammar(GBNF)
    walk = matcher._progress.walk(())
    assert walk is not None
    spaces = frozenset(b" \t\n")
    literals = literal_texts(walk)
    assert literals is not None
    assert literals == literal_texts(walk)
    short = [Literal(text, False, spaces) for text in (b"{", b'{"city"', b'{"city":', b'{"city":"Europe"')]
    assert [one for one in literals if len(one.text) < 17] == short
    walk.go(b'{"city":"Europe"')
    texts = {one.text for one in literal_texts(walk) or ()}
    assert texts == {b"", b"}", b', "country": ', b', "continent": true}'}
    walk.go(b', "country": ')
    assert literal_texts(walk) is None
