"""Captures and patches of an engine's requests are those of a session, whatever runs beside them."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphml
from graphml.api import request_probes
from graphml.api.engine import Engine
from graphml.errors import UsageError
from graphml.runtime.blocks.row_patches import PatchRows
from graphml.sampling import SamplingParams
from tests.adapter_files import write_vectors
from tests.sample_models import MODELS, write_model
from tests.stories import STORIES

GREEDY = SamplingParams(temperature=0)
PROMPT = "Once upon a time there was a little girl who went to the park with her mom and dad"
RESIDUALS, ATTENTION = "layers.*.ffn_residual", "layers.2.attention"
NAMES = ["gemma2-plain", "mistral-window", "llama-experts", "mamba-plain", "falcon-h1-plain", "phi2-plain"]


@pytest.fixture(scope="module")
def model() -> Iterator[graphml.Model]:
    with graphml.load(STORIES, "cpu", threads=1, n_batch=16, deterministic=True) as opened:
        yield opened


@pytest.fixture(scope="module")
def ids(model: graphml.Model) -> list[int]:
    return model.encode(PROMPT)


@pytest.fixture
def engine(model: graphml.Model) -> Iterator[Engine]:
    with model.engine(max_sequences=3, n_ctx=128) as opened:
        yield opened


def session_rows(model: graphml.Model, ids: list[int], n: int, **more: Any) -> tuple[list[int], Any]:
    """The tokens of a session alone, and its captured rows with those of every token of the prompt."""
    with model.session(128, history=True, **more) as session:
        session.eval(ids, all_logits=True)
        tokens = []
        for _ in range(n):
            tokens.append(session.sample(GREEDY))
            if len(tokens) < n:
                session.eval([tokens[-1]])
        steps = session.history
        return tokens, {name: np.concatenate([step[name] for step in steps]) for name in steps[0]}


def assert_same(got: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert list(got) == list(wanted)
    for name, rows in wanted.items():
        np.testing.assert_array_equal(got[name], rows, err_msg=name)


def test_rows_in_company_are_those_of_a_session_to_the_bit(
    model: graphml.Model, engine: Engine, ids: list[int]
) -> None:
    """In chunks of 16 and less, beside plain requests and others that capture the same."""
    names = [RESIDUALS, "layers.0.silu", "logits"]
    plain = [engine.submit(ids[i:], GREEDY, 8) for i in range(3)]
    handles = [engine.submit(ids[i:], GREEDY, 5 + i, capture=names) for i in range(3)]
    for i, handle in enumerate(handles):
        tokens, rows = session_rows(model, ids[i:], 5 + i, capture=names)
        assert handle.result().tokens == tokens
        assert_same(handle.result().captured, rows)
        assert len(rows["logits"]) == len(ids) - i + 5 + i - 1
    for i, one in enumerate(plain):
        with model.session(96) as session:
            assert one.result().tokens == [token.id for token in session.generate(ids[i:], GREEDY, 8)]
        assert not one.result().captured


@pytest.mark.parametrize("name", NAMES)
def test_architectures(name: str, tmp_path: Path) -> None:
    path = write_model(tmp_path / "model.gguf", *MODELS[name])
    with graphml.load(path, "cpu", threads=1, n_batch=8, kv="f32") as model:
        ids = [5, 9, 11, 3, 8, 7, 6, 20, 21, 22, 23]
        tokens, rows = session_rows(model, ids, 3, capture="layers.*")
        with model.engine(max_sequences=2, n_ctx=32) as engine:
            beside = engine.submit(ids[2:], GREEDY, 6)
            result = engine.submit(ids, GREEDY, 3, capture="layers.*").result()
            beside.result()
    assert result.tokens == tokens
    assert list(result.captured) == list(rows)
    for value, wanted in rows.items():
        np.testing.assert_allclose(result.captured[value], wanted, rtol=1e-3, atol=1e-4, err_msg=value)


def test_what_others_have_computed_is_computed_again(engine: Engine, ids: list[int]) -> None:
    first = engine.submit(ids, GREEDY, 2, capture=ATTENTION).result()
    assert engine.submit(ids, GREEDY, 1).result().n_cached == 0  # nor do others find what it computed
    assert engine.submit(ids, GREEDY, 1).result().n_cached > 16
    again = engine.submit(ids, GREEDY, 2, capture=ATTENTION).result()
    assert again.n_cached == 0
    assert len(again.captured[ATTENTION]) == len(ids) + 1
    assert_same(again.captured, first.captured)


def test_after_preemption_rows_are_there_once(model: graphml.Model, ids: list[int]) -> None:
    names, long = [ATTENTION, "logits"], (ids * 4)[:60]
    blocks = 5 * 32 * 2 * 5 * 32 * 2  # five blocks of 32 tokens
    with model.engine(blocks, max_sequences=2, n_ctx=128) as engine:
        with model.executor.lock:  # no step runs before both are there
            handles = [engine.submit(long[i:], GREEDY, 60, capture=names) for i in range(2)]
        results = [handle.result() for handle in handles]
        assert engine.stats().n_preempted
    for i, result in enumerate(results):
        tokens, rows = session_rows(model, long[i:], 60, capture=names)
        assert result.tokens == tokens
        assert_same(result.captured, rows)


def test_a_context_that_forgets_has_rows_of_all_tokens(model: graphml.Model, ids: list[int]) -> None:
    with model.engine(max_sequences=2, n_ctx=32, overflow="shift") as engine:
        result = engine.submit(ids, GREEDY, 60, capture=[ATTENTION, "logits"]).result()
        wanted = engine.submit(ids, GREEDY, 60).result()
    assert result.tokens == wanted.tokens
    assert {len(rows) for rows in result.captured.values()} == {len(ids) + 59}
    assert result.captured["logits"][len(ids) - 1 :].argmax(-1).tolist() == result.tokens


def test_a_prompt_alone_at_some_positions(model: graphml.Model, engine: Engine, ids: list[int]) -> None:
    _, rows = session_rows(model, ids, 1, capture=[ATTENTION, "logits"])
    places = [0, 3, len(ids) - 1]
    result = engine.submit(ids, max_tokens=0, capture=[ATTENTION, "logits"], positions=places).result()
    assert (result.tokens, result.stop_reason) == ([], "length")
    assert_same(result.captured, {name: array[places] for name, array in rows.items()})


def test_a_patch_changes_its_requests_tokens_alone(
    model: graphml.Model, engine: Engine, ids: list[int]
) -> None:
    """The function gets the rows of its request, and no others; what it returns is what readers see."""
    counts: dict[int, int] = {}

    def setter(number: int) -> Any:
        def all_of_it(array: Any) -> Any:
            counts[number] = counts.get(number, 0) + len(array)
            array[:] = number
            return array

        return all_of_it

    plain = [engine.submit(ids[i:], GREEDY, 8) for i in range(2)]
    handles = [
        engine.submit(ids[i:], GREEDY, 6, patch={ATTENTION: setter(i)}, capture=ATTENTION) for i in range(3)
    ]
    before = [engine.submit(ids[i:], GREEDY, 6).result().tokens for i in range(3)]
    for i, handle in enumerate(handles):
        result = handle.result()
        n_rows = len(ids) - i + 5
        assert counts[i] == n_rows
        assert (result.captured[ATTENTION] == i).all()
        tokens, rows = session_rows(model, ids[i:], 6, patch={ATTENTION: setter(i)}, capture=ATTENTION)
        assert result.tokens == tokens != before[i]
        assert_same(result.captured, rows)
    assert [one.result().tokens[:6] for one in plain] == [before[0], before[1]]


def test_rows_are_patched_in_at_their_positions(model: graphml.Model, engine: Engine, ids: list[int]) -> None:
    """Activation patching: the last residual stream of another prompt gives its answer, in both runtimes."""
    name = "layers.3.ffn_residual"
    others = [*ids[:1], *ids[:0:-1]]
    donor = engine.submit(others, GREEDY, 0, capture=name).result().captured[name]
    whole = PatchRows(donor, range(len(ids)))
    result = engine.submit(ids, GREEDY, 0, patch={name: whole}, capture=["logits", name]).result()
    wanted = engine.submit(others, GREEDY, 0, capture="logits").result().captured["logits"]
    np.testing.assert_array_equal(result.captured[name], donor)
    with model.session(96, patch={name: whole}, capture="logits") as session:
        session.eval(ids, all_logits=True)
        assert_same({"logits": result.captured["logits"]}, session.captured)
    np.testing.assert_array_equal(result.captured["logits"], wanted)
    one = PatchRows(donor[20], [20])
    rows = engine.submit(ids, GREEDY, 0, patch={name: one}, capture=[name]).result().captured[name]
    plain = engine.submit(ids, GREEDY, 0, capture=name).result().captured[name]
    np.testing.assert_array_equal(rows[20], donor[20])
    np.testing.assert_array_equal(np.delete(rows, 20, 0), np.delete(plain, 20, 0))
    added = PatchRows(np.ones(64), add=True)
    more = engine.submit(ids, GREEDY, 2, patch={name: added}, capture=[f"{name}.unpatched", name]).result()
    np.testing.assert_array_equal(more.captured[name], more.captured[f"{name}.unpatched"] + np.float32(1))


def test_steps_that_devices_are_given_ahead(tmp_path: Path) -> None:
    """Requests beside it run ahead again when it has ended; its own steps are read one by one."""
    with (
        graphml.load(STORIES, "opencl", n_batch=16) as model,
        model.engine(max_sequences=2, n_ctx=96) as engine,
    ):
        ids = model.encode(PROMPT)
        beside = engine.submit(ids, GREEDY, 30)
        result = engine.submit(ids[1:], GREEDY, 6, capture=[RESIDUALS, "logits"]).result()
        tokens, rows = session_rows(model, ids[1:], 6, capture=[RESIDUALS, "logits"])
        assert result.tokens == tokens
        for name, wanted in rows.items():
            np.testing.assert_allclose(result.captured[name], wanted, rtol=1e-3, atol=1e-3, err_msg=name)
        assert beside.result().tokens == engine.submit(ids, GREEDY, 30).result().tokens


def test_off_compiles_nothing_and_same_names_compile_once(
    model: graphml.Model, engine: Engine, ids: list[int]
) -> None:
    def programs() -> set[Any]:
        return set(model.executor.programs._programs)

    engine.submit(ids, GREEDY, 2).result()
    before = programs()
    engine.submit(ids[1:], GREEDY, 2).result()
    assert programs() == before
    for factor in (2.0, 3.0):
        patch = {"layers.1.ffn_residual": PatchRows(np.full(64, factor), add=True)}
        engine.submit(ids, GREEDY, 2, patch=patch, capture="layers.1.q").result()
        engine.submit(ids, GREEDY, 2, patch={"layers.1.ffn_residual": abs}, capture="layers.1.q").result()
        assert len(programs() - before) == 3  # of one row, of one a sequence, of a chunk
    engine.submit(ids, GREEDY, 2).result()
    assert len(programs() - before) == 3
    engine.close()
    assert programs() == before


def test_programs_of_the_latest_kinds_are_kept(
    model: graphml.Model, engine: Engine, ids: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_probes, "MOST_KINDS", 2)
    for layer in range(4):
        engine.submit(ids, GREEDY, 0, capture=f"layers.{layer}.q").result()
    kept = {key[-1].keep for key in model.executor.programs._programs}
    assert {("layers.2.q",), ("layers.3.q",)} <= kept
    assert ("layers.1.q",) not in kept
    engine._loop.scheduler.admission.held_back = lambda sequence: True
    waiting = [engine.submit(ids, GREEDY, 2, capture=f"layers.{layer}.q") for layer in (0, 1)]
    with pytest.raises(graphml.UsageError, match="at most 2 different sets"):
        engine.submit(ids, GREEDY, 2, capture="layers.4.q")
    for one in waiting:
        one.cancel()


def test_an_error_in_a_patch_ends_its_request_alone(engine: Engine, ids: list[int]) -> None:
    def function(array: Any) -> None:
        raise ZeroDivisionError("of the user's own")

    plain = engine.submit(ids, GREEDY, 6)
    patched = engine.submit(ids, GREEDY, 6, patch={"layers.1.q": function})
    with pytest.raises(ZeroDivisionError, match="own"):
        patched.result()
    assert len(plain.result().tokens) == 6


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "unknown name": ({"capture": "layers.0.atention"}, "capture: .*mean 'layers.0.attention'"),
    "unknown patch": ({"patch": {"layers.0.atention": abs}}, "patch: .*mean 'layers.0.attention'"),
    "no function": ({"patch": {"logits": 3}}, "wanted a function of an array, or .*; got 3"),
    "no mapping": ({"patch": [abs]}, "patch: wanted a mapping"),
    "no names": ({"capture": 3}, "capture: wanted names"),
    "positions alone": ({"positions": [1]}, "positions: wanted capture, too"),
    "positions": ({"capture": "logits", "positions": [-1]}, "positions: wanted different whole numbers"),
    "no such token": ({"capture": "logits", "positions": [99]}, "wanted numbers below 29, .* got 99"),
    "patched behind": (
        {"patch": {"layers.1.q": PatchRows(np.zeros(64), [29])}},
        "wanted numbers below 29, .* got 29",
    ),
    "several": ({"capture": "logits", "n": 2}, "n: wanted 1 for a request with capture; got 2"),
    "guided": ({"capture": "logits", "guidance_scale": 2.0}, "guidance_scale: wanted 1"),
    "layers alone": ({"control_layers": (1, 2)}, "control_layers: wanted control_vectors"),
    "drafts": ({"capture": "logits", "params": SamplingParams(spec_type="ngram")}, "takes no drafts"),
    "shape": ({"patch": {"layers.1.q": PatchRows([1.0])}}, r"wanted rows \[64\]; got \[1\]"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_could_never_run_is_refused_at_once(engine: Engine, ids: list[int], case: str) -> None:
    more, message = WRONG[case]
    with pytest.raises(graphml.UsageError, match=message):
        engine.submit(ids, max_tokens=2, **more)


@pytest.mark.parametrize("rows", [[[1.0], [1.0, 2.0]], [np.nan], ["a"]])
def test_rows_that_are_no_numbers(rows: Any) -> None:
    with pytest.raises(graphml.UsageError, match="finite numbers"):
        PatchRows(rows)


def test_control_vectors_of_a_request(
    model: graphml.Model, engine: Engine, ids: list[int], tmp_path: Path
) -> None:
    """Their prefixes are shared among requests with the same vectors, and with no others."""
    vector = np.random.default_rng(3).standard_normal(64, np.float32)
    file = write_vectors(tmp_path / "vectors.gguf", {1: vector})
    plain = engine.submit(ids, GREEDY, 6).result().tokens
    with model.session(96, control_vectors=[(file, 2.0)]) as session:
        wanted = [token.id for token in session.generate(ids, GREEDY, 6)]
    results = [engine.submit(ids, GREEDY, 6, control_vectors=[(file, 2.0)]).result() for _ in range(2)]
    assert [result.tokens for result in results] == [wanted, wanted]
    assert wanted != plain
    assert [result.n_cached > 0 for result in results] == [False, True]
    other = engine.submit(ids, GREEDY, 6, control_vectors=[(file, -2.0)]).result()
    assert other.n_cached == 0


def test_tokens_that_a_structure_forces_have_their_rows(
    model: graphml.Model, engine: Engine, ids: list[int]
) -> None:
    params = SamplingParams(temperature=0, regex="(Once upon a time there was|Zebra)")
    names = ["logits", RESIDUALS]
    result = engine.submit(ids, params, 10, capture=names).result()
    assert len(result.tokens) > 5
    with model.session(128, capture=names) as session:
        session.eval([*ids, *result.tokens[:-1]], all_logits=True)
        computed = session.captured
    n_rows = {name: len(rows) for name, rows in result.captured.items()}
    assert len(set(n_rows.values())) == 1, n_rows
    assert n_rows["logits"] >= len(ids) + len(result.tokens) - 1
    for name, rows in computed.items():
        np.testing.assert_allclose(result.captured[name][: len(rows)], rows, rtol=1e-4, atol=1e-4)


def test_a_patch_is_let_go_with_its_request(engine: Engine, ids: list[int]) -> None:
    def halved(array: Any) -> Any:
        return array * 0.5

    gone = weakref.ref(halved)
    engine.submit(ids, GREEDY, 2, patch={ATTENTION: halved}).result()
    del halved
    engine.submit(ids, GREEDY, 2).result()
    gc.collect()
    assert gone() is None


def test_positions_and_a_context_that_forgets_exclude_each_other(engine: Engine, ids: list[int]) -> None:
    rows = graphml.PatchRows(np.zeros((8, 8), np.float32), positions=[0])
    with pytest.raises(UsageError, match="overflow: wanted stop or error"):
        engine.submit(ids, GREEDY, 2, overflow="shift", patch={ATTENTION: rows})
    engine.submit(ids, GREEDY, 2, patch={ATTENTION: rows}).result()
