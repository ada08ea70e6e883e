"""Sampling on GPU backends: steps ahead and rows that stay on the device change no token."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import pytest
from graphml_gpu import run_outputs

import graphml
from graphml.loading import discovery
from graphml.runtime.steps import sampled_rows
from graphml.runtime.steps.runner import Runner
from graphml.sampling import SamplingParams, device_settings
from graphml.sampling.chain import top_k_sampling
from tests.stories import STORIES

DEVICES = [name for name in ("opencl", "wgpu") if discovery.backend(name).unavailable() is None]
IDS = [1, 403, 407, 261, 378]
LENGTH = 16

pytestmark = pytest.mark.skipif(not DEVICES, reason="neither wgpu nor OpenCL finds a device")

SAMPLED = [
    SamplingParams(),
    SamplingParams(temperature=0.8, top_k=40),
    SamplingParams(temperature=1.1, top_p=0.8, min_p=0.02),
]
OF_ROW = [
    SamplingParams(temperature=0.7),
    SamplingParams(temperature=1.0, min_p=0.1),
    SamplingParams(temperature=1.5),
]
OTHERS = [
    SamplingParams(temperature=1.0, min_p=0.1, min_keep=2),
    SamplingParams(temperature=1.0, dynatemp_range=0.5),
    SamplingParams(repeat_penalty=1.3),
]


@pytest.fixture(scope="module")
def opened() -> Iterator[Callable[[str, bool], graphml.Model]]:
    """Models by device and by whether their rows are read whole, each opened once."""
    found: dict[tuple[str, bool], graphml.Model] = {}

    def open_model(device: str, plain: bool) -> graphml.Model:
        key = device, plain
        if key not in found:
            found[key] = graphml.load(STORIES, device, n_batch=8, kv="f32")
            if plain:
                programs = found[key].executor.programs
                programs.backend = replace(found[key].executor.backend, reads_back=False)
        return found[key]

    yield open_model
    for model in found.values():
        model.close()


@pytest.fixture(params=DEVICES)
def model(request: pytest.FixtureRequest, opened: Callable[[str, bool], graphml.Model]) -> graphml.Model:
    return opened(request.param, False)


@pytest.fixture
def plain(model: graphml.Model, opened: Callable[[str, bool], graphml.Model]) -> graphml.Model:
    """The same model, whose rows are read whole."""
    return opened(model.executor.backend.name, True)


def in_turn(name: str, cases: Sequence[Any], first: int, ids: Iterable[str]) -> pytest.MarkDecorator:
    """Each case on one device, in turn, beginning with a device: kernels and what the host does are the same.

    Drivers differ in how rows are read and steps submitted, which each of them does in half of the cases;
    tests/gpu/test_row_kernels.py has the kernels on each.
    """
    pairs = [(case, DEVICES[(first + i) % len(DEVICES)]) for i, case in enumerate(cases)] if DEVICES else []
    names = [f"{device}-{one}" for (_, device), one in zip(pairs, ids, strict=False)]
    return pytest.mark.parametrize((name, "model"), pairs, indirect=["model"], ids=names)


def generated(model: graphml.Model, params: SamplingParams, n: int = LENGTH) -> list[int]:
    with model.session(n_ctx=64, seed=5) as session:
        return [token.id for token in session.generate(IDS, params, n)]


_KNOWN: WeakKeyDictionary[graphml.Model, dict[SamplingParams, list[int]]] = WeakKeyDictionary()


def known(model: graphml.Model, params: SamplingParams, n: int = LENGTH) -> list[int]:
    """The same of a model that others are compared with, generated once."""
    found = _KNOWN.setdefault(model, {})
    if len(found.get(params, ())) < n:
        found[params] = generated(model, params, n)
    return found[params][:n]


def rows_read(model: graphml.Model, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of each reading from now on; a row, of 512 logits here, counts as long."""
    monkeypatch.setattr(run_outputs, "_SMALL", 1024)
    found: list[int] = []
    driver = model.executor.device.memory.driver  # type: ignore[attr-defined]
    for name in ("read", "later"):
        real = getattr(driver, name)

        def counting(ranges, real=real):  # type: ignore[no-untyped-def]
            found.append(sum(n_bytes for _, _, n_bytes in ranges))
            return real(ranges)

        monkeypatch.setattr(driver, name, counting)
    submit = driver.submit

    def submitting(*rest, reads=(), **more):  # type: ignore[no-untyped-def]
        found.extend([sum(n_bytes for _, _, n_bytes in reads)] if reads else [])
        return submit(*rest, reads=reads, **more)

    monkeypatch.setattr(driver, "submit", submitting)
    return found


@pytest.fixture(scope="module")
def cpu() -> Iterator[graphml.Model]:
    with graphml.load(STORIES, "cpu", n_batch=8, kv="f32", threads=1) as opened:
        yield opened


def steps_ahead(model: graphml.Model, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the steps that are begun from now on with a token that nobody has seen yet."""
    found: list[int] = []
    submit = Runner.submit

    def counting(runner, plan, after, wanted):  # type: ignore[no-untyped-def]
        begun = submit(runner, plan, after, wanted)
        found.extend([begun.number] if after is not None and begun is not None else [])
        return begun

    monkeypatch.setattr(Runner, "submit", counting)
    return found


@in_turn("params", OF_ROW, 0, ids="012")
def test_rows_are_sampled_from_where_they_are(
    params: SamplingParams, model: graphml.Model, cpu: graphml.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The CPU's tokens, 20 bytes each, one step each but for numbers near an edge between two tokens."""
    read, begun = rows_read(model, monkeypatch), steps_ahead(model, monkeypatch)
    before, n = model.executor.n_steps, 24
    assert generated(model, params, n) == known(cpu, params, n)
    assert model.executor.n_steps - before <= n + 4
    assert len(begun) >= n - 6
    assert read.count(20) >= n - n // 8
    assert sum(read) <= 600 + 22 * n  # the first with the candidates of its row


@in_turn("margin", [0.02, 1.0], 1, ids=["0.02", "1.0"])
def test_edges_between_tokens_of_a_row_have_the_row_read(
    margin: float, model: graphml.Model, plain: graphml.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Now and then, and always: rows come along then, and steps run ahead all the same."""
    monkeypatch.setattr(top_k_sampling, "_ROW_MARGIN", margin)
    read, begun = rows_read(model, monkeypatch), steps_ahead(model, monkeypatch)
    before = model.executor.n_steps
    assert generated(model, OF_ROW[2], 24) == known(plain, OF_ROW[2], 24)
    assert max(read) >= 2048
    assert len(begun) >= 18
    assert model.executor.n_steps - before <= (36 if margin < 1 else 26)


@in_turn("params", SAMPLED + OTHERS, 0, ids="012345")
def test_tokens_are_those_of_whole_rows(
    params: SamplingParams, model: graphml.Model, plain: graphml.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, before = rows_read(model, monkeypatch), model.executor.n_steps
    assert generated(model, params) == known(plain, params)
    steps = model.executor.n_steps - before
    if params in SAMPLED[:2]:
        assert steps == LENGTH
        assert max(read) <= 600
    assert steps <= LENGTH * 3 // 2


def test_what_the_device_drew_is_checked(
    model: graphml.Model, plain: graphml.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It samples with other numbers than the host here: steps are dropped, tokens stay what they are."""
    before = model.executor.n_steps
    monkeypatch.setattr(
        sampled_rows, "device_settings", lambda params, number, k: device_settings(params, 1 - number, k)
    )
    assert generated(model, SAMPLED[1]) == known(plain, SAMPLED[1])
    assert model.executor.n_steps - before > LENGTH


@in_turn("params", [*SAMPLED[:2], OF_ROW[0]], 1, ids=["greedy", "sampled", "of row"])
def test_a_generation_can_end_anywhere_and_go_on(
    params: SamplingParams, model: graphml.Model, plain: graphml.Model
) -> None:
    wanted = known(plain, params)
    with model.session(n_ctx=64, seed=5) as session:
        running = session.generate(IDS, params, LENGTH)
        found = [next(running).id for _ in range(4)]
        assert session.n_past == len(IDS) + 4
        found += [token.id for token in session.generate((), params, 3)]  # the first is left
        for token in session.generate((), params, LENGTH):
            found.append(token.id)
            if len(found) == 10:
                session.cancel()
        assert session.stop_reason == "cancel"
        found.append(session.sample(params))
        logits = session.eval(found[-1:])
        assert found == wanted[: len(found)]
        if params.greedy:
            assert int(logits.argmax()) == wanted[len(found)]
            session.rewind(len(IDS) + 6)
            again = [token.id for token in session.generate((), params, LENGTH - 6)]
            assert again == wanted[6:]


def test_stops_and_full_contexts_end_as_ever(model: graphml.Model, plain: graphml.Model) -> None:
    wanted = known(plain, SamplingParams())
    for place, params in (
        (7, SamplingParams(stop_tokens=frozenset({wanted[7]}))),
        (9, SamplingParams(stop=(model.decode(wanted[:10])[-4:],))),
    ):
        session = model.session(n_ctx=64)
        found = [token.id for token in session.generate(IDS, params, LENGTH)]
        assert session.stop_reason == "stop"
        assert found == wanted[: len(found)]
        assert len(found) <= place + 1
        rest = [token.id for token in session.generate((), None, LENGTH - len(found))]
        assert found + rest == wanted
    session = model.session(n_ctx=len(IDS) + 6)
    assert [token.id for token in session.generate(IDS)] == wanted[:6]
    assert session.stop_reason == "context"


def test_sessions_take_turns_between_steps(model: graphml.Model, plain: graphml.Model) -> None:
    chosen = [SAMPLED[1], OF_ROW[0]]
    alone = [known(plain, params) for params in chosen]
    sessions = [model.session(n_ctx=64, seed=5) for _ in chosen]
    turns = [s.generate(IDS, params, LENGTH) for s, params in zip(sessions, chosen, strict=False)]
    together = [[first.id, second.id] for first, second in zip(*turns, strict=True)]
    assert np.array(together).T.tolist() == alone
    found: dict[int, list[int]] = {}
    threads = [
        threading.Thread(target=lambda i=i: found.update({i: generated(model, chosen[i])})) for i in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[0], found[1]] == alone


def test_batches_read_the_top_k_of_each_row(
    model: graphml.Model, plain: graphml.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    def both(which: graphml.Model, params: list[SamplingParams]) -> list[tuple[int, int]]:
        with which.batch(2, n_ctx=64, seed=5) as batch:
            return [(i, token.id) for i, token in batch.generate([IDS, IDS[:3]], params, 8)]

    read = rows_read(model, monkeypatch)
    for params in (SAMPLED[:2], [SAMPLED[1], OF_ROW[0]]):
        assert both(model, params) == both(plain, params)
    assert max(read) <= 2 * 600
    assert both(model, [SAMPLED[0], OTHERS[2]]) == both(plain, [SAMPLED[0], OTHERS[2]])


def test_values_are_captured_at_every_token(model: graphml.Model, plain: graphml.Model) -> None:
    found = []
    for one in (model, plain):
        with one.session(n_ctx=64, capture="layers.1.attention", history=True) as session:
            ids = [token.id for token in session.generate(IDS, max_tokens=6)]
            found.append((ids, np.concatenate([step["layers.1.attention"] for step in session.history])))
    assert found[0][0] == found[1][0]
    np.testing.assert_array_equal(found[0][1], found[1][1])
