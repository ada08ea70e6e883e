"""Sessions: evaluation in any cut, rewinding, several at once."""

from __future__ import annotations

import copy
import itertools
import pickle
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphml
from graphml import SamplingParams
from graphml.runtime.steps.runner import Runner
from tests import tiny_model
from tests.api.tokens import ONLY_A, greedy_ids
from tests.looped import looped
from tests.stories import STORIES


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


@looped(
    "wrong",
    [[], [-1], [268], [1.5], b"hello", [[1, 2]], [True], [1, None], 7, [1 << 70], np.ones(2)],
    ids=repr,
)
def test_wrong_ids_are_refused_and_change_nothing(model: graphml.Model, ids: list[int], wrong: Any) -> None:
    session = model.session()
    session.eval(ids)
    with pytest.raises(graphml.UsageError, match="ids: wanted"):
        session.eval(wrong)
    assert session.n_past == len(ids)
    if not isinstance(wrong, str | list) or (wrong and isinstance(wrong, list)):  # else it is a prompt
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
    step, calls = Runner.run, itertools.count(1)

    def fails_at_the_second(*arguments: Any, **options: Any) -> Any:
        if next(calls) == 2:
            raise graphml.BackendError("broken")
        return step(*arguments, **options)

    monkeypatch.setattr(Runner, "run", fails_at_the_second)
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


@looped("wrong", [-1, 4, 1.0, "1", True, None])
def test_rewind_refuses_what_it_cannot(model: graphml.Model, wrong: Any) -> None:
    session = model.session()
    session.eval([4, 5, 6])
    with pytest.raises(graphml.UsageError, match="n_past: wanted"):
        session.rewind(wrong)
    assert session.n_past == 3


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
        "n_prompt": 0, "n_cached": 0, "n_gen": 0, "n_drafted": 0, "n_accepted": 0, "ttft_s": 0.0,
        "prefill_tps": 0.0, "gen_tps": 0.0,
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


@looped("wrong", [0, -1, 161, 1 << 40, 1.0, "5", True])
def test_the_context_has_a_limit(model: graphml.Model, wrong: Any) -> None:
    with pytest.raises(graphml.UsageError, match="n_ctx: wanted 1 to 160"):
        model.session(n_ctx=wrong)


def test_stories_from_the_llama2c_file() -> None:
    with graphml.load(STORIES, backend="reference") as model:
        session = model.session()
        pieces = [token.piece for token in session.generate(model.encode(""), SamplingParams(), 24)]
    assert "".join(pieces).startswith("Once upon a time, there was a little girl named Lily.")


@pytest.mark.parametrize("reads_back", [False, True])
@pytest.mark.parametrize("flaw", [np.nan, np.inf])
def test_logits_that_are_no_numbers_are_the_files_fault(
    tmp_path: Path, flaw: float, reads_back: bool
) -> None:
    """One number of a norm is damaged. reads_back: as on a GPU, which has the top k of a row."""
    path = tiny_model.write(tmp_path / "damaged.gguf")
    whole = path.read_bytes()
    ones = np.ones(tiny_model.WIDTH, np.float32).tobytes()
    at = whole.rindex(ones)
    path.write_bytes(whole[:at] + np.float32(flaw).tobytes() + whole[at + 4 :])
    with graphml.load(path, "reference", kv="f32") as model, np.errstate(all="ignore"):
        model.executor.programs.backend = replace(model.executor.backend, reads_back=reads_back)
        for params in (SamplingParams(), SamplingParams(temperature=0.8), SamplingParams(top_k=3)):
            session = model.session(n_ctx=16)
            with pytest.raises(graphml.WeightsError, match=r"damaged\.gguf: .* are no numbers"):
                list(session.generate([4, 5], params, 2))
            with pytest.raises(graphml.WeightsError, match="no numbers"):
                session.sample(params)
        session.rewind(0)
        session.eval([4])
        nothing_left = SamplingParams(logit_bias=dict.fromkeys(range(model.n_vocab), -np.inf))
        with pytest.raises(graphml.WeightsError, match="no numbers"):
            session.sample(nothing_left)


WRONG = (5, -1, 1.5, [[7]], object(), np.array(3), True, float("nan"), b"x")


def test_arguments_of_a_wrong_kind_are_named(model: graphml.Model) -> None:
    assert model.tokenizer is not None
    tokenizer, path = model.tokenizer, model.path
    uses: dict[str, Callable[[Any], object]] = {
        "(ids|token id): ": model.decode,
        "token id: ": lambda wrong: tokenizer.stream().push(wrong),
        "ids:": lambda wrong: model.batch(2, n_ctx=8).eval(wrong),
        "params:": lambda wrong: list(model.batch(1, n_ctx=8).generate([[1]], wrong)),
        "texts": lambda wrong: model.embed(wrong, pooling="mean"),
        "text": lambda wrong: model.rank("a", wrong),
        "variables:": lambda wrong: model.chat(variables=wrong),
        "capture:": lambda wrong: model.session(capture=wrong),
        "patch:": lambda wrong: model.session(patch=wrong),
        "model:": graphml.load,
        "arch:": lambda wrong: graphml.load(path, "reference", arch=wrong),
        "template:": lambda wrong: graphml.load(path, "reference", template=wrong),
        "pre:": lambda wrong: graphml.load(path, "reference", pre=wrong),
        "quant:": lambda wrong: graphml.load(path, "reference", quant=wrong),
        "progress:": lambda wrong: graphml.load(path, "reference", progress=wrong),
    }
    for says, use in uses.items():
        for wrong in WRONG:
            if says == "token id: " and (type(wrong) is int or isinstance(wrong, np.ndarray)):
                continue  # an id, be it of nothing
            with pytest.raises(graphml.UsageError, match=says):
                use(wrong)
    for none in (model.decode, lambda wrong: model.batch(2, n_ctx=8).eval(wrong)):
        with pytest.raises(graphml.UsageError, match="ids: wanted"):
            none(None)


@pytest.mark.parametrize("all_logits", [False, True])
def test_rows_belong_to_the_caller(model: graphml.Model, all_logits: bool) -> None:
    with model.session() as session:
        rows = session.eval([5, 6, 7], all_logits)
        highest = int(np.atleast_2d(rows)[-1].argmax())
        rows[...] = 0.0
        rows[..., highest - 1] = 1.0
        assert session.sample() == highest


def test_a_generation_that_was_not_read_is_in_the_way_of_the_next(
    model: graphml.Model, tmp_path: Path
) -> None:
    """Nothing of it was computed, so that the next one would be of another text."""
    session, apart = model.session(), model.session()
    first = session.generate("Once upon a time", max_tokens=4)
    with pytest.raises(
        graphml.UsageError, match=r"generate: the generation before was not read: .*\.text, or close\(\)"
    ):
        session.generate(" there was", max_tokens=4)
    for what, use in (("fork", session.fork), ("save", lambda: session.save(tmp_path / "session"))):
        with pytest.raises(graphml.UsageError, match=f"{what}: the generation before was not read"):
            use()
    assert not (tmp_path / "session").exists()
    texts = str(first), str(session.generate(" there was", max_tokens=4))
    assert texts == (apart.generate("Once upon a time", max_tokens=4).text,
                     apart.generate(" there was", max_tokens=4).text)  # fmt: skip
    assert first.text == texts[0]  # again, and of all its tokens
    assert len(session) == session.n_past == len(apart)
    session.generate(" unread").close()
    later = session.generate(" a girl", max_tokens=4)
    session.eval([5])
    with pytest.raises(graphml.UsageError, match="used for something else meanwhile"):
        _ = later.text
    assert session.tokens[-1] == 5
    session.generate(" unread")
    session.rewind(1)  # ends it: what it would have followed is gone
    assert session.generate(" a girl", max_tokens=4).text


def test_the_text_of_a_generation_has_the_tokens_that_were_taken(model: graphml.Model) -> None:
    tokens = model.session().generate("Once upon a time", max_tokens=6)
    first = next(tokens)
    assert tokens.text.startswith(first.piece)
    assert tokens.text == model.session().generate("Once upon a time", max_tokens=6).text


def test_a_token_is_its_text(model: graphml.Model) -> None:
    tokens = list(model.session().generate("Once upon a time", max_tokens=6))
    text = ""
    for token in tokens:
        text += token
    assert text == "".join(tokens) == model.generate("Once upon a time", max_tokens=6).text
    empty, first = graphml.Token(7, ""), graphml.Token(9, "a", 2)
    assert empty, "one without text is a token, too"
    for copied in (copy.copy(first), copy.deepcopy(first), pickle.loads(pickle.dumps(first))):
        assert (copied, copied.id, copied.piece, copied.index, copied.logprobs) == ("a", 9, "a", 2, None)
    assert {first: 1}["a"] == 1
