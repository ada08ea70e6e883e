"""Context shift: llama.cpp's logits, what must not change, and what a full context does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import graphml
from graphml import ContextFullError, UsageError
from graphml.runtime.programs.load_options import LoadOptions
from graphml.runtime.programs.open_executor import open_executor
from graphml.runtime.sessions.committed import Committed
from graphml.runtime.steps.cell_mover import why_no_shift
from tests import golden, tiny_model
from tests.sample_models import MODELS, write_model

DATA = Path(__file__).parents[1] / "data" / "shifts.npz"
with np.load(DATA) as _arrays:
    RECORDS = dict(_arrays)
"""NAME.more: ids; NAME.KEEP.DROP: llama.cpp's logits after the first and the last of them, when they follow a
golden's first 24 tokens and a shift. llama.cpp 0.5.0, CPU, weights and cache in float32."""
CASES = [key for key in RECORDS if not key.endswith(".more")]
BACKENDS = ("cpu", "reference", "opencl")
LENGTH = 24


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("shifts")
    names = {case.split(".")[0] for case in CASES}
    return {name: golden.build(golden.read(name), folder / f"{name}.gguf") for name in names}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", CASES)
def test_logits_after_a_shift_are_those_of_llama_cpp(case: str, backend: str, files: dict[str, Path]) -> None:
    name, keep, drop = case.split(".")
    tokens, more = golden.read(name).tokens[:LENGTH], RECORDS[f"{name}.more"].tolist()
    if backend != "cpu" and (keep, drop) != ("4", "10"):
        pytest.skip("one case of each on other backends")
    with graphml.load(files[name], backend=backend, kv="f32") as model:
        session = model.session(n_ctx=40)
        session.eval(tokens)
        session.shift(int(keep), int(drop))
        assert session.tokens == tokens[: int(keep)] + tokens[int(keep) + int(drop) :]
        rows = session.eval(more, all_logits=True)[[0, -1]]
        assert golden.nmse(rows, RECORDS[case]) < 1e-6
        fresh = model.session(n_ctx=40)
        fresh.eval(tokens[: int(keep)] + tokens[int(keep) + int(drop) :])
        assert golden.nmse(fresh.eval(more, all_logits=True)[[0, -1]], RECORDS[case]) > 3e-6


@pytest.mark.parametrize(
    ("backend", "kv"),
    [
        (backend, kv)
        for backend in BACKENDS
        for kv in (("f32", "q8_0") if backend == "opencl" else ("f32", "f16", "q8_0", "q4_0"))
    ],
)
def test_two_shifts_are_one_of_both(backend: str, kv: str, files: dict[str, Path]) -> None:
    tokens = golden.read("llama-dense").tokens[:LENGTH]
    with graphml.load(files["llama-dense"], backend=backend, kv=kv) as model:

        def shifted(*drops: int) -> tuple[list[int], np.ndarray]:
            session = model.session(n_ctx=40)
            session.eval(tokens)
            for drop in drops:
                session.shift(2, drop)
            return session.tokens, session.eval([5, 6, 7])

        (ids, wanted), (same, got), (_, unlike) = shifted(9), shifted(4, 5), shifted(8)
        assert ids == same
        close = {"f32": 1e-11, "f16": 1e-6, "q8_0": 1e-4, "q4_0": 2e-2}[kv]
        assert golden.nmse(got, wanted) < close
        assert golden.nmse(unlike, wanted) > 1e-3


@pytest.mark.parametrize("backend", BACKENDS)
def test_nothing_dropped_changes_nothing(backend: str, files: dict[str, Path]) -> None:
    tokens = golden.read("qwen3-dense").tokens[:LENGTH]
    with graphml.load(files["qwen3-dense"], backend=backend) as model:
        one, other = model.session(n_ctx=40), model.session(n_ctx=40)
        for session in (one, other):
            session.eval(tokens)
        one.shift(7, 0)
        np.testing.assert_array_equal(one.logits, other.logits)
        np.testing.assert_array_equal(one.eval([1, 2]), other.eval([1, 2]))


def test_what_follows_is_computed_from_the_moved_cells(model: graphml.Model) -> None:
    session = model.session()
    before = session.eval(range(10, 30))
    session.shift(3, 4)
    other = model.session()
    other.eval(range(10, 29))
    other.shift(3, 4)
    np.testing.assert_allclose(session.logits, other.eval([29]), atol=1e-4)
    assert golden.nmse(session.logits, before) > 1e-3
    session.shift(10, 6)  # the last token with them
    assert session.tokens == [10, 11, 12, *range(17, 24)]
    assert session.sample() == int(session.logits.argmax())
    session.shift(0, 10)
    assert session.tokens == []


def test_long_shifts_take_several_runs_and_blocks(files: dict[str, Path]) -> None:
    """Cells of eight blocks: what follows is near to what the kept tokens say afresh."""
    ids = np.random.default_rng(2).integers(0, 128, 230)
    with graphml.load(files["mpt-dense"], kv="f32") as model:
        session, fresh = model.session(n_ctx=256), model.session(n_ctx=256)
        session.eval(ids)
        session.shift(0, 1)
        for _ in range(5):
            session.shift(11, 7)
        fresh.eval(session.tokens)
        assert 0 < golden.nmse(session.eval([1, 2, 3]), fresh.eval([1, 2, 3])) < 0.05


@pytest.mark.parametrize(("keep", "drop"), [(-1, 2), (21, 0), (5, 16), (0.5, 1), (1, "2"), (True, 1)])
def test_wrong_numbers_change_nothing(model: graphml.Model, keep: int, drop: int) -> None:
    session = model.session()
    session.eval(range(10, 30))
    with pytest.raises(UsageError, match=r"(keep|drop): wanted"):
        session.shift(keep, drop)
    assert session.tokens == list(range(10, 30))


NEVER = {
    "recurrent": "is a state that all earlier tokens have changed",
    "ahead": "tokens see those after them",
    "groups": "groups of tokens that begin at fixed positions",
}


@pytest.mark.parametrize("name", sorted(MODELS))
def test_every_architecture_shifts_or_says_why_not(name: str, tmp_path: Path) -> None:
    path = write_model(tmp_path / "model.gguf", *MODELS[name])
    executor = open_executor(path, LoadOptions(backend="reference", kv="f32"))
    reason = why_no_shift(executor)
    if executor.recurrent:
        assert NEVER["recurrent"] in (reason or "")
    elif not executor.architecture.causal:
        assert NEVER["ahead"] in (reason or "")
    elif executor.architecture.name == "deepseek4":
        assert NEVER["groups"] in (reason or "")
    else:
        assert reason is None
    executor.close()


def test_a_recurrent_model_refuses_and_keeps_what_it_has(tmp_path: Path) -> None:
    path = write_model(tmp_path / "mamba.gguf", *MODELS["mamba-plain"])
    with graphml.load(path, backend="reference", kv="f32") as model:
        session = model.session()
        logits = session.eval([5, 6, 7])
        with pytest.raises(UsageError, match="mamba has no context shift"):
            session.shift(0, 1)
        with pytest.raises(UsageError, match="overflow: mamba has no context shift"):
            session.generate([1], overflow="shift")
        np.testing.assert_array_equal(session.logits, logits)


def test_an_error_while_cells_move_leaves_tokens_to_be_evaluated(
    model: graphml.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, after = model.session(), model.session()
    session.eval(range(10, 30))

    def fails(*arguments: object) -> None:
        raise RuntimeError("the device is gone")

    with monkeypatch.context() as broken:
        broken.setattr("graphml.runtime.sessions.pinned.move_cells", fails)
        with pytest.raises(RuntimeError, match="the device is gone"):
            session.shift(3, 4)
    after.eval(session.tokens)
    assert session.tokens == [*range(10, 13), *range(17, 30)]
    np.testing.assert_allclose(session.eval([1, 2]), after.eval([1, 2]), atol=1e-4)


def test_an_error_before_cells_move_leaves_the_session_as_it_was(
    model: graphml.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = model.session()
    logits = session.eval(range(10, 30))
    with monkeypatch.context() as broken:
        broken.setattr(Committed, "shift", lambda *arguments: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            session.shift(3, 4)
    assert session.tokens == list(range(10, 30))
    np.testing.assert_array_equal(session.logits, logits)


# A full context


def ids_of(session: graphml.Session, count: int, **given: object) -> list[int]:
    return [token.id for token in session.generate(range(20, 50), None, count, **given)]  # type: ignore[arg-type]


def test_a_full_context_stops_shifts_or_is_an_error(model: graphml.Model) -> None:
    stopped = model.session(n_ctx=40)
    first = ids_of(stopped, 30)
    assert (len(first), stopped.stop_reason) == (10, "context")
    shifted = model.session(n_ctx=40)
    longer = ids_of(shifted, 50, overflow="shift", keep=6)
    assert (len(longer), shifted.stop_reason) == (50, "length")
    assert longer[:10] == first
    assert shifted.shifts[0] == (6, 17)  # half of 40 - 6
    assert len(shifted.shifts) == 3
    assert shifted.tokens[:6] == list(range(20, 26))
    assert shifted.tokens[6:] == longer[-(shifted.n_past - 6) :]
    refused = model.session(n_ctx=40)
    tokens = refused.generate(range(20, 50), None, 30, overflow="error")
    given = []
    with pytest.raises(ContextFullError, match="the context of 40 tokens is full"):
        given.extend(token.id for token in tokens)  # pragma: no branch
    assert refused.tokens == [*range(20, 50), *first]


def test_a_shift_within_a_generation_is_a_shift(model: graphml.Model) -> None:
    generated, byhand = model.session(n_ctx=40), model.session(n_ctx=40)
    longer = ids_of(generated, 12, overflow="shift", keep=3)
    byhand.eval(range(20, 50))
    for token in longer[:9]:
        byhand.eval([token])
    byhand._held.append(longer[9])
    byhand.shift(3, 18)
    for token in longer[10:]:
        assert byhand.sample() == token
        byhand.eval([token])
    assert byhand.tokens == generated.tokens


@pytest.mark.parametrize(
    ("keep", "begins", "kept"), [(0, False, 0), (0, True, 1), (5, True, 6), (-1, True, 30), (35, True, 36)]
)
def test_what_is_kept(keep: int, begins: bool, kept: int, model: graphml.Model) -> None:
    session = model.session(n_ctx=40)
    ids = [tiny_model.BEGIN if begins else 20, *range(21, 50)]
    list(session.generate(ids, None, 11, overflow="shift", keep=keep))
    assert session.shifts == [(kept, max(1, (40 - kept) // 2))]
    assert session.tokens[: min(kept, 30)] == ids[:kept]


def test_a_prompt_that_does_not_fit_is_made_room_for(model: graphml.Model) -> None:
    session = model.session(n_ctx=40)
    session.eval(range(20, 50))
    list(session.generate(range(100, 120), None, 2, overflow="shift", keep=4))
    assert session.shifts == [(4, 13)]
    assert session.tokens[:-2] == [*range(20, 24), *range(37, 50), *range(100, 120)]
    list(session.generate(range(200, 230), None, 1, overflow="shift", keep=4))
    assert session.shifts == [(4, 29), (4, 18)]  # more than half, since the prompt needs it
    with pytest.raises(ContextFullError, match="of which 4 are kept"):
        session.generate(range(100, 137), None, 2, overflow="shift", keep=4)
    with pytest.raises(UsageError, match="overflow: wanted one of stop, shift, error; got 'forget'"):
        session.generate([1], overflow="forget")
    with pytest.raises(UsageError, match="keep: wanted a whole number of at least -1"):
        session.generate([1], keep=-2)
