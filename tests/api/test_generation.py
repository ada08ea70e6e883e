"""Generation in a session: tokens and pieces, and all the ways in which it ends."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphml
from graphml import SamplingParams
from graphml.api.session_evaluation import EvaluatedSession
from graphml.runtime.steps.runner import Runner
from tests import tiny_model
from tests.api.tokens import ONLY_A, greedy_ids
from tests.looped import looped


def test_generate_is_eval_and_sample(model: graphml.Model, ids: list[int]) -> None:
    by_hand, session = [], model.session()
    logits = session.eval(ids)
    for _ in range(12):
        by_hand.append(int(logits.argmax()))
        logits = session.eval(by_hand[-1:])
    session = model.session()
    assert greedy_ids(session, ids, 12) == by_hand
    assert session.tokens == ids + by_hand
    assert session.n_past == len(ids) + 12
    assert session.stop_reason == "length"


def test_generation_goes_on_where_it_stopped(model: graphml.Model, ids: list[int]) -> None:
    whole = greedy_ids(model.session(), ids, 14)
    session = model.session()
    first = greedy_ids(session, ids, 5)
    for token in session.generate([], SamplingParams(), 9):  # left by a break
        first.append(token.id)
        if len(first) == 8:
            break
    assert session.n_past == len(ids) + 8
    assert session.sample() == whole[8]
    assert first + greedy_ids(session, [], 6) == whole


def test_all_logits_after_a_generation_are_those_of_the_new_ids(model: graphml.Model, ids: list[int]) -> None:
    session = model.session()
    given = greedy_ids(session, ids, 3)  # the last of them is evaluated only now
    rows = session.eval([40, 41], all_logits=True)
    assert rows.shape == (2, model.n_vocab)
    whole = model.session().eval([*ids, *given, 40, 41], all_logits=True)
    np.testing.assert_allclose(rows, whole[-2:], atol=1e-4)


def test_nothing_to_go_on_from_is_refused(model: graphml.Model) -> None:
    with pytest.raises(graphml.UsageError, match="the session holds none"):
        model.session().generate([])
    with pytest.raises(graphml.UsageError, match="evaluate some first"):
        model.session().sample()


def test_pieces_are_the_text(model: graphml.Model, ids: list[int]) -> None:
    for seed in range(4):
        session = model.session(seed=seed)
        tokens = list(session.generate(ids, SamplingParams(temperature=1.5), 40))
        text = model.decode([token.id for token in tokens], skip_special=True)
        assert "".join(token.piece for token in tokens) == text


def test_seeds_repeat_and_differ(model: graphml.Model, ids: list[int]) -> None:
    params = SamplingParams(temperature=1.0)

    def run(session: graphml.Session) -> list[int]:
        session.rewind(0)
        return [token.id for token in session.generate(ids, params, 10)]

    session = model.session(seed=1)
    first = run(session)
    assert run(model.session(seed=1)) == first
    assert run(session) != first  # the generator went on
    session.set_seed(1)
    assert run(session) == first
    assert len({tuple(run(model.session(seed=seed))) for seed in range(5)}) > 1
    drawn = model.session()
    assert run(model.session(seed=drawn.seed)) == run(drawn)
    for wrong in (-1, 1.5, "1", True):
        with pytest.raises(graphml.UsageError, match="seed: wanted"):
            model.session(seed=wrong)  # type: ignore[arg-type]


def test_penalties_look_at_prompt_and_answer(model: graphml.Model, ids: list[int]) -> None:
    params = SamplingParams(presence_penalty=1000.0, repeat_last_n=-1)
    session = model.session()
    generated = [token.id for token in session.generate(ids, params, 60)]
    assert len(set(generated)) == len(generated)
    assert not set(generated) & set(ids)


def test_an_end_token_ends_and_is_not_kept(model: graphml.Model, ids: list[int]) -> None:
    session = model.session()
    params = SamplingParams(logit_bias={tiny_model.END: 1000.0})
    assert list(session.generate(ids, params, 5)) == []
    assert session.stop_reason == "end"
    assert session.tokens == ids


def test_a_stop_token_ends_and_is_not_kept(model: graphml.Model, ids: list[int]) -> None:
    whole = greedy_ids(model.session(), ids, 6)
    session = model.session()
    params = SamplingParams(stop_tokens=frozenset({whole[4]}))
    cut = whole[: whole.index(whole[4])]
    given = [token.id for token in session.generate(ids, params, 6)]
    assert [one for one in given if one != whole[4]] == cut  # it is given if it carries held-back text
    assert session.stop_reason == "stop"
    assert session.tokens == ids + cut


def test_text_held_back_at_an_end_token_is_given(
    model: graphml.Model, ids: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    letter = tiny_model.vocabulary().index("a")
    session = model.session()
    params = SamplingParams(stop=("ab",), logit_bias={letter: 1000.0})
    stream = session.generate(ids, params, 5)
    assert next(stream) == graphml.Token(letter, "")  # perhaps the beginning of "ab"
    monkeypatch.setattr(EvaluatedSession, "sampled", lambda session, params: tiny_model.END)
    assert list(stream) == [graphml.Token(tiny_model.END, "a")]
    assert session.stop_reason == "end"
    assert session.tokens == [*ids, letter]


def test_a_stop_string_is_not_shown(model: graphml.Model, ids: list[int]) -> None:
    session = model.session()
    tokens = list(session.generate(ids, SamplingParams(stop=("aaa",), **ONLY_A), 9))
    assert "".join(token.piece for token in tokens) == ""
    assert len(tokens) == 3
    assert session.stop_reason == "stop"


def test_text_held_back_for_a_stop_string_comes_at_the_limit(model: graphml.Model, ids: list[int]) -> None:
    tokens = list(model.session().generate(ids, SamplingParams(stop=("aaab",), **ONLY_A), 5))
    assert [token.piece for token in tokens] == ["", "", "", "a", "aaaa"]


def test_a_full_context_ends_a_generation(model: graphml.Model, ids: list[int]) -> None:
    session = model.session(n_ctx=len(ids) + 4)
    assert len(list(session.generate(ids, SamplingParams(**ONLY_A)))) == 4
    assert session.stop_reason == "context"
    assert session.n_past == session.n_ctx


def test_no_tokens_may_be_asked_for(model: graphml.Model, ids: list[int]) -> None:
    session = model.session()
    assert list(session.generate(ids, None, 0)) == []
    assert session.n_past == len(ids)
    wrong: Any
    for wrong in (-1, True, 2.5, "2"):
        with pytest.raises(graphml.UsageError, match="max_tokens: wanted"):
            session.generate(ids, None, wrong)


@looped("wrong", [{}, {"temperature": 1.0}, 0.8, SamplingParams], ids=repr)
def test_what_are_no_params_is_refused(model: graphml.Model, ids: list[int], wrong: Any) -> None:
    session = model.session()
    session.eval(ids)
    for use in (lambda: session.sample(wrong), lambda: session.generate(ids, wrong, 2)):
        with pytest.raises(graphml.UsageError, match="params: wanted SamplingParams or None"):
            use()
    assert session.n_past == len(ids)


def test_whole_numbers_may_be_numpys(model: graphml.Model, ids: list[int]) -> None:
    session = model.session(np.int64(32), np.uint32(7))  # type: ignore[arg-type]
    assert (session.n_ctx, session.seed) == (32, 7)
    assert len(list(session.generate(ids, None, np.int32(3)))) == 3  # type: ignore[arg-type]
    session.rewind(np.int16(2))  # type: ignore[arg-type]
    assert session.tokens == ids[:2]


def test_cancel_from_another_thread(model: graphml.Model, ids: list[int]) -> None:
    session = model.session()
    count = 0
    for _ in session.generate(ids, SamplingParams(**ONLY_A)):
        count += 1
        if count == 3:
            thread = threading.Thread(target=session.cancel)
            thread.start()
            thread.join()
    assert count == 3
    assert session.stop_reason == "cancel"
    assert len(list(session.generate([], SamplingParams(**ONLY_A), 4))) == 4  # cancelled once, not for ever


def test_cancel_ends_a_long_prompt(model: graphml.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    session = model.session()
    step = Runner.run

    def step_and_cancel(*arguments: Any, **options: Any) -> Any:
        session.cancel()
        return step(*arguments, **options)

    monkeypatch.setattr(Runner, "run", step_and_cancel)
    assert list(session.generate([4] * 100, SamplingParams(), 5)) == []
    assert session.stop_reason == "cancel"
    assert session.n_past == 0


def test_another_use_ends_a_generation(model: graphml.Model, ids: list[int]) -> None:
    session = model.session()
    stream = session.generate(ids, SamplingParams(**ONLY_A))
    next(stream)
    session.eval([9])
    with pytest.raises(graphml.UsageError, match="used for something else"):
        next(stream)
    assert session.tokens[-1] == 9


def test_a_first_token_waits_for_no_program_of_single_tokens(tmp_path: Path) -> None:
    with graphml.load(tiny_model.write(tmp_path / "tiny.gguf"), n_batch=8) as model:
        session = model.session(64)
        assert len(list(session.generate([5, 6, 7], max_tokens=1))) == 1
        assert {key[0] for key in model.executor.programs._programs} == {8}
        tokens = list(session.generate(max_tokens=2))
        assert {key[0] for key in model.executor.programs._programs} == {1, 8}
        again = list(model.session(64).generate([5, 6, 7], max_tokens=3))
        assert [token.id for token in again[1:]] == [token.id for token in tokens]
