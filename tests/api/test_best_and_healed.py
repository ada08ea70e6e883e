"""The best of several continuations, and prompts whose last token is taken back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import graphml
from graphml import SamplingParams
from graphml.errors import TokenizerError, UsageError
from graphml.sampling.structured.opened_tokens import tokens_of
from graphml.sampling.structured.params_structure import matcher_of
from tests import tiny_model
from tests.stories import STORIES

HOT = SamplingParams(temperature=1.5, logprobs=0)


@pytest.fixture(scope="module")
def model() -> Iterator[graphml.Model]:
    with graphml.load(STORIES, "cpu", threads=1, n_batch=32, kv="f32") as opened:
        yield opened


def test_the_best_is_the_most_likely_by_its_rows(model: graphml.Model) -> None:
    ids = model.encode("Once upon a time")
    params = SamplingParams(temperature=1.5, logprobs=0, stop=(".",))
    with model.engine(max_sequences=4, n_ctx=128) as engine:
        handle = engine.submit(ids, params, 12, seed=3, n=5)
        sums, means = [], []
        for one in handle.results():
            with model.session(n_ctx=128) as session:
                rows = session.eval([*ids, *one.tokens], all_logits=True)[len(ids) - 1 : -1].astype(float)
            own = rows[range(len(one.tokens)), one.tokens]
            losses = own - np.log(np.exp(rows).sum(axis=1))
            sums.append(losses.sum())
            means.append(losses.mean())
            assert one.cumulative_logprob == pytest.approx(sums[-1], abs=1e-3)
        assert handle.best("sum") is handle.results()[int(np.argmax(sums))]
        assert handle.best() is handle.results()[int(np.argmax(means))]
    found = model.best_of(ids, 5, SamplingParams(temperature=1.5, stop=(".",)), 12, seed=3)
    assert found.tokens == handle.best().tokens


def test_what_cannot_be_compared_is_refused(model: graphml.Model) -> None:
    with model.engine(max_sequences=2, n_ctx=64) as engine:
        handle = engine.submit([1, 403], SamplingParams(), 2)
        with pytest.raises(UsageError, match=r"best: wanted params with logprobs"):
            handle.best()
        with pytest.raises(UsageError, match=r"by: wanted one of mean, sum; got 'max'"):
            handle.best("max")
    with pytest.raises(UsageError, match=r"by: wanted one of mean, sum"):
        model.best_of([1, 403], 2, by="median")


def test_a_prompt_that_ends_within_a_word_is_healed(model: graphml.Model) -> None:
    """The token of "upo" is not one that the model was trained to continue with "n"."""
    whole = model.encode("Once upon")
    cut = model.heal("Once upo")
    assert cut.text
    assert cut.text in " upo"
    assert [*cut.ids, *model.encode(cut.text, add_special=False)][-1] != whole[-1]
    with model.session(n_ctx=64) as session:
        text = "".join(token.piece for token in session.generate(cut.ids, cut.params, 8))
    assert text.startswith(cut.text)
    (result,) = model.generate([cut.ids], cut.params, 8)
    assert result.text == text
    with model.batch(2, n_ctx=64) as batch:
        texts = ["", ""]
        for i, token in batch.generate([cut.ids, whole], [cut.params, SamplingParams()], 8):
            texts[i] += token.piece
    assert texts[0] == text


def test_each_step_is_the_most_likely_that_goes_on_so(model: graphml.Model) -> None:
    """Against all tokens, tried one by one."""
    begin, ids = " there was", model.encode("Once upon a time,")
    params = SamplingParams(begins_with=begin)
    assert model.tokenizer is not None
    with model.session(n_ctx=64) as session:
        generated = [token.id for token in session.generate(ids, params, 6)]
        session.rewind(0)
        row, left = session.eval(ids), begin.encode()
        for token in generated:
            fits = [
                one
                for one in range(model.n_vocab)
                if (piece := model.tokenizer.piece_bytes(one))
                and not model.tokenizer.is_special(one)
                and (piece.startswith(left) or left.startswith(piece))
            ]
            assert token == (max(fits, key=lambda one: row[one]) if left else int(row.argmax()))
            left = left[len(model.tokenizer.piece_bytes(token)) :]
            row = session.eval([token])
    assert not left


def test_the_begin_rewinds_and_copies(model: graphml.Model) -> None:
    matcher = matcher_of(SamplingParams(begins_with="Lily was"), model.tokenizer)
    assert matcher is not None
    assert model.tokenizer is not None
    tokens = tokens_of(model.tokenizer)
    start = matcher.mask().copy()
    assert not start[list(tokens.end_tokens)].any()
    assert start.tolist() == [matcher.allows(i) for i in range(model.n_vocab)]
    first = next(i for i in np.flatnonzero(start) if tokens.pieces[i] == b"L")
    matcher.accept(int(first))
    other = matcher.copy()
    assert {tokens.pieces[i][:1] for i in np.flatnonzero(other.mask())} == {b"i"}
    matcher.rewind(1)
    assert (matcher.mask() == start).all()
    assert not other.may_end()
    assert other.accepts("ily was")
    assert other.accepts("ily wasx")


def test_characters_of_several_tokens_and_control_tokens(tmp_path: Path) -> None:
    path = tiny_model.write(tmp_path / "tiny.gguf")
    with graphml.load(path, backend="reference", n_batch=8, kv="f32") as tiny:
        ids = tiny.encode("a\u20ac")
        found = tiny.heal(ids)
        assert (found.ids, found.text, found.params.begins_with) == (ids[:1], "\u20ac", "\u20ac")
        ended = [*tiny.encode("hello"), tiny_model.END]
        assert (tiny.heal(ended).ids, tiny.heal(ended).text) == (ended, "")
        assert tiny.heal([tiny.encode("hello")[0]]).text == ""
        with pytest.raises(UsageError, match=r"heal: wanted params without a grammar"):
            tiny.heal("hello", SamplingParams(regex="a+"))
    with pytest.raises(UsageError, match=r"grammar, begins_with: wanted one of them, or none"):
        SamplingParams(grammar='root ::= "a"', begins_with="b")
    path = tiny_model.write(tmp_path / "none.gguf", tokenizer=False, template=None)
    with (
        graphml.load(path, backend="reference", n_batch=8) as bare,
        pytest.raises(TokenizerError, match=r"none\.gguf: heal: wanted a model with a vocabulary"),
    ):
        bare.heal([5, 6])
