"""Model files that change while they are in use, and models that are closed while others use them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphml
from graphml.errors import UsageError, WeightsError
from graphml.runtime.plans.plan_inputs import PlanInputs
from graphml.runtime.programs import compiled_programs
from graphml.runtime.programs.memory_needed import arena_bytes
from graphml.runtime.sessions.pinned import Room
from graphml.runtime.steps import runner as runner_module
from graphml.weights import ModelFile
from tests import tiny_model

IDS = [5, 6, 7]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tiny_model.write(tmp_path / "tiny.gguf")


def touch(path: Path) -> None:
    os.utime(path, ns=(10**18, 10**18))


def append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


def cut_off(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(4096)


CHANGES = [touch, append, cut_off]


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_file_is_told_before_a_prompt_and_before_a_program(
    change: Callable[[Path], None], path: Path
) -> None:
    with graphml.load(path, "reference") as model:
        used, fresh = model.session(64), model.session(64)
        used.eval(IDS)
        used.eval([8])
        change(path)
        words = r"tiny\.gguf: the file was changed while it was in use: [\d,]+ bytes.*pages='copy'"
        for ids in (IDS, [8]):
            with pytest.raises(WeightsError, match=words):
                used.eval(ids)
            with pytest.raises(WeightsError, match=words):
                fresh.eval(ids)
        with pytest.raises(WeightsError, match=words):
            next(used.generate(IDS))
        for ask in (model.session, lambda: model.embed("word"), lambda: model.chat()):
            with pytest.raises(WeightsError, match=words):
                ask()
        assert used.tokens == [*IDS, 8]


def test_a_copy_does_not_depend_on_the_file(path: Path) -> None:
    with graphml.load(path, "reference") as model:
        wanted = model.session(64).eval(IDS)
    with graphml.load(path, "reference", pages="copy") as model:
        assert model.tokenizer is not None
        cut_off(path)
        np.testing.assert_array_equal(model.session(64).eval(IDS), wanted)


def test_another_file_of_the_same_name_is_no_change(path: Path, tmp_path: Path) -> None:
    other = tiny_model.write(tmp_path / "other.gguf", seed=9)
    with graphml.load(path, "reference") as model:
        session = model.session(64)
        wanted = session.eval(IDS)
        other.replace(path)
        session.rewind(0)
        np.testing.assert_array_equal(session.eval(IDS), wanted)


def test_descriptors_are_given_back(path: Path) -> None:
    folder = Path("/proc/self/fd")
    if not folder.is_dir():
        pytest.skip("this system does not list descriptors")
    graphml.load(path, "reference").close()
    before = len(list(folder.iterdir()))
    for _ in range(3):
        graphml.load(path, "reference").close()
    assert len(list(folder.iterdir())) == before


def closed_at(model: graphml.Model, monkeypatch: pytest.MonkeyPatch, where: object, name: str) -> None:
    """Have another thread close the model where a function is called, and go on when it is done."""
    real = getattr(where, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        closing = threading.Thread(target=model.close)
        closing.start()
        closing.join()
        return real(*args, **kwargs)

    monkeypatch.setattr(where, name, call)


def test_closing_between_a_compilation_and_the_states(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = graphml.load(path, "reference")
    closed_at(model, monkeypatch, runner_module, "state_names")
    with pytest.raises(UsageError, match="was closed"):
        model.session(64)


def test_closing_before_a_compilation(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = graphml.load(path, "reference")
    session = model.session(64)
    closed_at(model, monkeypatch, session, "_compile")
    with pytest.raises(UsageError, match="was closed"):
        session.eval(IDS)


def test_closing_between_a_compilation_and_the_step(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = graphml.load(path, "reference")
    session = model.session(64)
    closed_at(model, monkeypatch, session, "evaluated")
    with pytest.raises(UsageError, match="was closed"):
        session.eval(IDS)


@pytest.mark.parametrize("where", ["build", "compile_graph", "fill", "check_unchanged"])
def test_closing_waits_for_what_is_at_work(where: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = graphml.load(path, "reference")
    at_work, may_go_on = threading.Event(), threading.Event()
    owners = {"compile_graph": compiled_programs, "fill": PlanInputs, "check_unchanged": ModelFile}
    owner: Any = owners.get(where, model.executor.architecture)
    real = getattr(owner, where)
    # The file is checked when a session is opened, too; here it is while one is used.
    opened = model.session(64) if where == "check_unchanged" else None

    def call(*args: Any, **kwargs: Any) -> Any:
        at_work.set()
        assert may_go_on.wait(60)
        return real(*args, **kwargs)

    if where == "build":  # of a frozen dataclass, which other models have, too
        monkeypatch.setitem(vars(owner), where, call)
    else:
        monkeypatch.setattr(owner, where, call)
    failures: list[BaseException] = []

    def use() -> None:
        try:
            (opened or model.session(64)).eval(IDS)
        except BaseException as error:
            failures.append(error)

    user, closing = threading.Thread(target=use), threading.Thread(target=model.close)
    user.start()
    assert at_work.wait(60)
    closing.start()
    closing.join(0.05)
    assert closing.is_alive()
    assert not model.executor.closed
    may_go_on.set()
    user.join(60)
    closing.join(60)
    assert not user.is_alive()
    assert model.executor.closed
    for error in failures:
        assert isinstance(error, UsageError), repr(error)
        assert "was closed" in str(error)


def test_graphs_of_a_closed_model(path: Path) -> None:
    model = graphml.load(path, "reference")
    model.close()
    for use in (
        lambda: model.executor.build(1, 1),
        lambda: arena_bytes(model.executor),
        lambda: model.executor.recurrent,
        lambda: Room(model.executor, model.executor.options, 64),
    ):
        with pytest.raises(UsageError, match=r"tiny\.gguf: the model was closed"):
            use()


def test_a_step_of_a_closed_model(path: Path) -> None:
    model = graphml.load(path, "reference")
    room = Room(model.executor, model.executor.options, 64)
    sequence = room.pinned(0)
    room.step({sequence: np.array(IDS, np.int32)})
    model.close()
    for ids in (IDS, IDS[:1]):
        with pytest.raises(UsageError, match=r"tiny\.gguf: the model was closed"):
            room.step({sequence: np.array(ids, np.int32)})
    assert sequence.n_computed == len(IDS)
