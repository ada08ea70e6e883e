"""A driver that fails in the middle of a run: a clear error, and the same tokens on another backend."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import graphml
from graphml.errors import BackendError, UsageError
from graphml.sampling import SamplingParams
from tests import tiny_model
from tests.gpu.driven import NAMES
from tests.stories import STORIES

IDS = [1, 403, 407]
SAMPLED = SamplingParams(temperature=0.8, top_k=8)
CALLS = ("submit", "read", "later", "wait", "write", "copy")


@pytest.fixture(scope="module")
def on_cpu() -> Iterator[graphml.Model]:
    with graphml.load(STORIES, "cpu", kv="f32", threads=1) as opened:
        yield opened


def fail_at(model: graphml.Model, n: int, monkeypatch: pytest.MonkeyPatch, lost: bool) -> None:
    """From its n-th submit on the device is lost, or that one alone has no memory."""
    driver: Any = model.executor.device.memory.driver  # type: ignore[attr-defined]
    submits = 0

    def failing(name: str) -> Any:
        real = getattr(driver, name)

        def call(*given: Any, **named: Any) -> Any:
            nonlocal submits
            submits += name == "submit"
            if submits > n if lost else (name == "submit" and submits == n + 1):
                raise BackendError("the device is lost" if lost else "the device has no memory left")
            return real(*given, **named)

        return call

    for name in CALLS:
        monkeypatch.setattr(driver, name, failing(name))


@pytest.mark.parametrize("params", [SamplingParams(temperature=0), SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("name", NAMES)
def test_a_session_goes_on_elsewhere_where_its_device_is_lost(
    name: str, params: SamplingParams, on_cpu: graphml.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    with on_cpu.session(n_ctx=64, seed=7) as whole:
        wanted = [token.id for token in whole.generate(IDS, params, 24)]
    with graphml.load(STORIES, name, kv="f32") as model:
        session = model.session(n_ctx=64, seed=7)
        fail_at(model, 9, monkeypatch, lost=True)
        found: list[int] = []
        with pytest.raises(
            BackendError, match=r"the device is lost; the step counts for nothing.*Model\.moved"
        ):
            found.extend(token.id for token in session.generate(IDS, params, 24))
        assert session.tokens == IDS + found == IDS + wanted[: len(found)]
        assert 4 <= len(found) < 24
        with pytest.raises(BackendError):
            session.eval([5])
        assert session.tokens == IDS + found
        with on_cpu.moved(session) as moved:
            assert moved.tokens == session.tokens
            found += [token.id for token in moved.generate((), params, 24 - len(found))]
            assert found == wanted
        monkeypatch.undo()  # the driver is shared


@pytest.mark.parametrize("name", NAMES)
def test_a_session_goes_on_where_it_is_once_there_is_memory_again(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = SamplingParams(temperature=0)
    with graphml.load(STORIES, name, kv="f32") as model:
        with model.session(n_ctx=64, seed=7) as whole:
            wanted = [token.id for token in whole.generate(IDS, params, 24)]
        session = model.session(n_ctx=64, seed=7)
        fail_at(model, 9, monkeypatch, lost=False)
        found: list[int] = []
        with pytest.raises(BackendError, match="no memory left; the step counts for nothing"):
            found.extend(token.id for token in session.generate(IDS, params, 24))
        found += [token.id for token in session.generate((), params, 24 - len(found))]
        assert found == wanted


def test_sessions_move_to_the_same_model_alone(on_cpu: graphml.Model, tmp_path: Path) -> None:
    path = tiny_model.write(tmp_path / "tiny.gguf")
    with graphml.load(path, "cpu") as other, other.session(n_ctx=32) as session:
        session.eval([1, 2])
        with pytest.raises(UsageError, match=r"moved: wanted a session of .*stories260K.*tiny\.gguf"):
            on_cpu.moved(session)
        with other.moved(session) as moved:
            assert moved.tokens == [1, 2]
            assert (moved.logits == session.logits).all()
