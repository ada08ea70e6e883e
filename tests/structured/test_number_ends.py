"""Numbers of JSON that a model writes end: behind 16 digits a mask has no further one, unless it must."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

from graphml.sampling import SamplingParams
from graphml.sampling.structured.matcher import Matcher
from graphml.sampling.structured.opened_tokens import tokens_of
from graphml.sampling.structured.params_structure import matcher_of
from graphml.text.tokenizer import Tokenizer, load_tokenizer
from tests.text.vocabularies import recorded_metadata

Loader = Callable[[str], Tokenizer]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Loader:
    folder = tmp_path_factory.mktemp("vocabularies")
    return cache(lambda name: load_tokenizer(recorded_metadata(name, folder)))


def schema_of(value: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"n": value}, "required": ["n"]}


def written(matcher: Matcher, tokenizer: Tokenizer, wanted: str = "0123456789", most: int = 80) -> str:
    """What somebody writes who likes one class of characters: its longest token, else any that goes on."""
    pieces = tokens_of(tokenizer).pieces
    for _ in range(most):
        allowed = [int(token) for token in np.flatnonzero(matcher.mask()) if int(token) not in matcher.eog]
        if not allowed:
            break
        liked = [x for x in allowed if pieces[x] and not pieces[x].strip(wanted.encode())]
        plain = [x for x in allowed if pieces[x].strip()]
        if liked:
            matcher.accept(max(liked, key=lambda token: (len(pieces[token]), pieces[token])))
        else:
            matcher.accept(min(plain or allowed))
    return b"".join(pieces[token] for token in matcher.accepted).decode()


def begun(tokenizer: Tokenizer, schema: Any, **more: Any) -> Matcher:
    matcher = matcher_of(SamplingParams(json_schema=json.dumps(schema), **more), tokenizer)
    assert matcher is not None
    return matcher


@pytest.mark.parametrize("name", ["gpt-2", "llama-bpe", "gemma-4"])
@pytest.mark.parametrize(
    "kind", [{"type": "integer"}, {"type": "number"}, {"type": ["integer", "null"]}, {}], ids=str
)
def test_a_number_has_at_most_16_digits_in_a_row(kind: dict[str, Any], name: str, tokenizer: Loader) -> None:
    text = written(begun(tokenizer(name), schema_of(kind)), tokenizer(name))
    value = json.loads(text)["n"]
    assert isinstance(value, int | float)
    assert max(map(len, re.findall("[0-9]+", text))) == 16


@pytest.mark.parametrize("tail", ["", ".5", "e12", ".25E-3"])
def test_a_number_that_ends_before_is_left_alone(tail: str, tokenizer: Loader) -> None:
    matcher, gpt2 = begun(tokenizer("gpt-2"), schema_of({"type": "number"})), tokenizer("gpt-2")
    for token in tokens_of(gpt2).ids_behind((), f'{{"n": -123456{tail}}}'.encode()):
        assert matcher.mask()[token]
        matcher.accept(token)
    assert matcher.may_end()


@pytest.mark.parametrize(
    "value",
    [{"type": "string"}, {"type": "string", "pattern": "^[0-9]{20,24}$"}, {"type": "string", "maxLength": 30},
     {"const": 123456789012345678901234}, {"enum": ["123456789012345678901234", "1"]},
     {"type": "integer", "minimum": 10**20, "maximum": 10**21}],
    ids=str,
)  # fmt: skip
def test_texts_and_what_a_schema_wants_may_be_longer(value: dict[str, Any], tokenizer: Loader) -> None:
    text = written(begun(tokenizer("gpt-2"), schema_of(value)), tokenizer("gpt-2"), most=16)
    assert max(map(len, re.findall("[0-9]+", text))) > 16


def test_longer_numbers_are_accepted_but_never_proposed(tokenizer: Loader) -> None:
    matcher, gpt2 = begun(tokenizer("gpt-2"), {"type": "integer"}), tokenizer("gpt-2")
    one = tokens_of(gpt2).of_byte[ord("1")]
    assert one is not None
    for n in range(20):
        assert matcher.mask()[one] == (n < 16)
        assert matcher.allows(one)
        matcher.accept(one)
    matcher.rewind(5)
    assert matcher.mask()[one]
    assert matcher.copy().mask()[one]


def test_grammars_and_expressions_count_as_they_are_written(tokenizer: Loader) -> None:
    gpt2 = tokenizer("gpt-2")
    for structure in (
        {"regex": "[0-9]{1,30}"},
        {"grammar": "root ::= [0-9]{1,30}"},
        {"lark": "start: /[0-9]{1,30}/"},
    ):
        matcher = matcher_of(SamplingParams(**structure), gpt2)
        assert matcher is not None
        assert len(written(matcher, gpt2)) == 30
