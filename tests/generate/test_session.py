"""Sessions: evaluation in any cut, rewinding, generation and all the ways in which it ends."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphml
from graphml import SamplingParams
from tests import tiny_model

STORIES = Path(__file__).parents[1] / "data" / "llama2c" / "stories260K.bin"
PROMPT = "hello world, hello"
ONLY_A = {"logit_bias": {tiny_model.vocabulary().index("a"): 1000.0}}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[graphml.Model]:
    path = tiny_model.write(tmp_path_factory.mktemp("tiny") / "tiny.gguf")
    with graphml.load(path, backend="reference", n_batch=8, kv="f32") as opened:
        yield opened


@pytest.fixture
def ids(model: graphml.Model) -> list[int]:
    return model.encode(PROMPT)


def greedy_ids(session: graphml.Session, ids: list[int], count: int) -> list[int]:
    return [token.id for token in session.generate(ids, SamplingParams(), count)]


def test_logits_do_not_depend_on_how_the_ids_are_cut(model: graphml.Model) -> None:
    ids = np.random.default_rng(1).integers(3, model.n_vocab, 21)  # three batches of 8
    at_once = model.session().eval(ids, all_logits=True)
    assert at_once.shape == (21, model.n_vocab)
    assert at_once.dtype == np.float32
    one_by_one = model.session()
    steps = np.stack([one_by_one.eval([one]) for one in ids.tolist()])
    np.testing.assert_allclose(at_once, steps, atol=1e-4)
    np.testing.assert_allclose(model.session().eval(ids.tolist()), steps[-1], atol=1e-4)
    assert np.abs(at_once[0] - at_once[1]).max() > 0.1


def test_logits_are_the_callers_own(model: graphml.Model, ids: list[int]) -> None:
    session = model.session()
    logits = session.eval(ids)
    kept, best = logits.copy(), int(logits.argmax())
    logits[:] = 0
    assert session.sample() == best
    rows = model.session().eval(ids, all_logits=True)
    rows[:] = 0
    again = model.session()
    first = again.eval(ids)
    again.eval([5])
    np.testing.assert_array_equal(first, kept)


@pytest.mark.parametrize(
    "wrong",
    [[], [-1], [268], [1.5], ["a"], "hello", b"hello", [[1, 2]], [True], [1, None], 7, [1 << 70], np.ones(2)],
    ids=repr,
)
def test_wrong_ids_are_refused_and_change_nothing(model: graphml.Model, ids: list[int], wrong: Any) -> None:
    session = model.session()
    session.eval(ids)
    with pytest.raises(graphml.UsageError, match="ids: wanted"):
        session.eval(wrong)
    assert session.n_past == len(ids)
    if not isinstance(wrong, list) or wrong:  # no ids at all is to go on
        with pytest.raises(graphml.UsageError, match="ids: wanted"):
            session.generate(wrong)


def test_numpy_and_tuple_ids_are_ids(model: graphml.Model) -> None:
    expected = model.session().eval([4, 5])
    for ids in (np.array([4, 5], np.uint8), (4, 5), range(4, 6), np.array([4, 5], np.int64)):
        np.testing.assert_array_equal(model.session().eval(ids), expected)


def test_a_full_context_names_its_limit_and_changes_nothing(model: graphml.Model) -> None:
    session = model.session(n_ctx=20)
    session.eval([4] * 18)
    for use in (lambda: session.eval([4] * 3), lambda: session.generate([4] * 3)):
        with pytest.raises(graphml.ContextFullError, match="n_ctx = 20 tokens and has 18; got 3 more"):
            use()
    assert session.n_past == 18
    session.eval([4, 4])
    assert session.n_past == 20


def test_an_error_in_a_later_batch_loses_nothing(
    model: graphml.Model, ids: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    session = model.session()
    expected = session.eval(ids)
    step, calls = model.executor.values, itertools.count(1)

    def fails_at_the_second(*arguments: Any, **options: Any) -> Any:
        if next(calls) == 2:
            raise graphml.BackendError("broken")
        return step(*arguments, **options)

    monkeypatch.setattr(model.executor, "values", fails_at_the_second)
    with pytest.raises(graphml.BackendError, match="broken"):
        session.eval([7] * 20)
    assert session.n_past == len(ids)
    assert session.sample() == int(expected.argmax())
    fresh = model.session()
    fresh.eval(ids)
    np.testing.assert_allclose(session.eval([7] * 20), fresh.eval([7] * 20), atol=1e-5)


def test_rewind_forgets_exactly_the_rest(model: graphml.Model, ids: list[int]) -> None:
    session = model.session()
    session.eval([*ids, 40, 41, 42])
    session.rewind(len(ids))
    assert session.tokens == ids
    fresh = model.session()
    expected = fresh.eval(ids)
    assert session.sample() == int(expected.argmax())  # its logits were gone and are made again
    np.testing.assert_allclose(session.eval([50, 51]), fresh.eval([50, 51]), atol=1e-5)
    session.rewind(0)
    np.testing.assert_allclose(session.eval(ids), expected, atol=1e-5)


@pytest.mark.parametrize("wrong", [-1, 4, 1.0, "1", True, None])
def test_rewind_refuses_what_it_cannot(model: graphml.Model, wrong: Any) -> None:
    session = model.session()
    session.eval([4, 5, 6])
    with pytest.raises(graphml.UsageError, match="n_past: wanted"):
        session.rewind(wrong)
    assert session.n_past == 3


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
    params = SamplingParams(presence_penalty=1000.0, penalty_last_n=-1)
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


def test_text_held_back_at_an_end_token_is_given(model: graphml.Model, ids: list[int]) -> None:
    letter = tiny_model.vocabulary().index("a")
    session = model.session()
    params = SamplingParams(stop=("ab",), logit_bias={letter: 1000.0})
    stream = session.generate(ids, params, 5)
    assert next(stream) == graphml.Token(letter, "")  # perhaps the beginning of "ab"
    session.sample = lambda params: tiny_model.END  # type: ignore[method-assign]
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


@pytest.mark.parametrize("wrong", [{}, {"temperature": 1.0}, 0.8, SamplingParams], ids=repr)
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
    step = model.executor.values

    def step_and_cancel(*arguments: Any, **options: Any) -> Any:
        session.cancel()
        return step(*arguments, **options)

    monkeypatch.setattr(model.executor, "values", step_and_cancel)
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


def test_sessions_do_not_disturb_one_another(model: graphml.Model, ids: list[int]) -> None:
    alone = [greedy_ids(model.session(), ids[i:], 8) for i in range(3)]
    streams = [model.session().generate(ids[i:], SamplingParams(), 8) for i in range(3)]
    rounds = [[token.id for token in tokens] for tokens in zip(*streams, strict=True)]
    assert [list(column) for column in zip(*rounds, strict=True)] == alone


def test_sessions_may_run_in_threads(model: graphml.Model, ids: list[int]) -> None:
    alone = [greedy_ids(model.session(), ids[i:], 10) for i in range(4)]
    found: dict[int, list[int]] = {}

    def run(index: int) -> None:
        found[index] = greedy_ids(model.session(), ids[index:], 10)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[index] for index in range(4)] == alone


def test_stats(model: graphml.Model, ids: list[int]) -> None:
    session = model.session()
    assert dict(session.stats) == {
        "n_prompt": 0, "n_gen": 0, "ttft_s": 0.0, "prefill_tps": 0.0, "gen_tps": 0.0
    }  # fmt: skip
    list(session.generate(ids, SamplingParams(**ONLY_A), 5))
    stats = session.stats
    assert (stats.n_prompt, stats.n_gen) == (len(ids), 5)
    assert stats.ttft_s > 0
    assert stats.prefill_tps > 0
    assert stats.gen_tps > 0
    assert stats["n_gen"] == 5
    session.eval([4, 5, 6])
    assert (session.stats.n_prompt, session.stats.n_gen) == (3, 0)


def test_a_closed_session_says_so(model: graphml.Model, ids: list[int]) -> None:
    with model.session() as session:
        session.eval(ids)
    for use in (lambda: session.eval(ids), session.sample, lambda: session.generate(ids)):
        with pytest.raises(graphml.UsageError, match="was closed"):
            use()


@pytest.mark.parametrize("wrong", [0, -1, 161, 1 << 40, 1.0, "5", True])
def test_the_context_has_a_limit(model: graphml.Model, wrong: Any) -> None:
    with pytest.raises(graphml.UsageError, match="n_ctx: wanted 1 to 160"):
        model.session(n_ctx=wrong)


def test_stories_from_the_llama2c_file() -> None:
    with graphml.load(STORIES, backend="reference") as model:
        session = model.session()
        pieces = [token.piece for token in session.generate(model.encode(""), SamplingParams(), 24)]
    assert "".join(pieces).startswith("Once upon a time, there was a little girl named Lily.")
