"""Errors and Ctrl-C at every step of every use: a session holds what it says that it holds."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import graphml
from graphml.backend import no_progress
from tests import tiny_model
from tests.api import remembering
from tests.sample_models import MODELS, write_model

SOURCE, OTHER = (5, 6, 7), (8, 9)
BEFORE = list(range(10, 22))  # two batches
NEW = [40, 41, 42, 43, 44, 45, 46, 47, 48, 49, 50]
N_CTX = 40  # two blocks, the second not whole
ROOT = Path(graphml.__file__).parent
PARTS = (
    "api/session.py",
    "runtime/sessions/committed.py",
    "runtime/sessions/evaluation.py",
    "runtime/steps/run_ahead.py",
    "api/batch.py",
    "sampling/chain/next_logits.py",
    "api/session_evaluation.py",
    "api/capture.py",
    "runtime/steps/runner.py",
    "runtime/sessions/pinned.py",
    "runtime/plans/plan_inputs.py",
    "runtime/programs/step_inputs.py",
    "runtime/plans/plan_sources.py",
    "runtime/sessions/kept_states.py",
    "api/generation.py",
    "runtime/steps/cell_mover.py",
    "runtime/blocks/overflow.py",
    "runtime/sessions/shared_steps.py",
    "runtime/sessions/shared_room.py",
)
# What has locks of its own may be left locked.
STANDARD_LIBRARY = (threading.__file__, contextlib.__file__)
TRACED = {remembering.__file__, *(str(ROOT / part) for part in PARTS), *STANDARD_LIBRARY}
EVERY_BYTE_CODE = ("committed.py", "kept_states.py", "pinned.py", "remembering.py")


class Interrupted(BaseException):
    """As KeyboardInterrupt, and not to be mistaken for one."""


Place = tuple[str, int, int]


class Tracer:
    """Counts the places that are passed: lines of the files above, in some of them byte codes.

    at: raises there, where it is not 0. places: how often which were passed, in order.
    """

    def __init__(self, at: int = 0) -> None:
        self.at, self.passed = at, 0
        self.places: list[Place] = []

    def __call__(self, frame: FrameType, event: str, value: Any) -> Any:
        if frame.f_code.co_filename not in TRACED:
            return None
        frame.f_trace_opcodes = frame.f_code.co_filename.endswith(EVERY_BYTE_CODE)
        return self.inside(frame, event, value)

    def inside(self, frame: FrameType, event: str, value: Any) -> Any:
        self.passed += 1
        if not self.at:
            self.places.append((frame.f_code.co_filename, frame.f_code.co_firstlineno, frame.f_lasti))
        elif self.passed == self.at:
            raise Interrupted
        return self.inside

    def watch(self, use: Callable[..., object], *arguments: Any) -> bool:
        """Call it; whether it was interrupted."""
        return next(self.watched(use, *arguments))

    def watched(self, use: Callable[..., object], *arguments: Any) -> Iterator[bool]:
        """As `watch`, in a generator: what was being handled where it raised is forgotten with it.

        CPython keeps it as the exception that is handled, and gives it to all later ones as context.
        """
        before = sys.gettrace()
        sys.settrace(self)
        try:
            use(*arguments)
        except Interrupted:
            interrupted = True
        else:
            interrupted = False
        finally:
            sys.settrace(before)
        yield interrupted


def numbers_of(use: Callable[..., object], *arguments: Any) -> list[int]:
    """The numbers of the first and the last time that each place is passed."""
    tracer = Tracer()
    tracer.watch(use, *arguments)
    first: dict[Place, int] = {}
    last: dict[Place, int] = {}
    for number, place in enumerate(tracer.places, 1):
        first.setdefault(place, number)
        last[place] = number
    return sorted({*first.values(), *last.values()})


def check(session: graphml.Session, source: tuple[int, ...] = ()) -> None:
    """What it would sample, and the logits of what follows, are those of the ids that it tells.

    Twice: the second time, recurrent states are those of a copy that was kept before or in the first.
    """
    assert tuple(session.source) == source
    ids = tuple(session.tokens)
    assert session.n_past == len(ids)
    greedy = int(remembering.row_of(source, ids, session.n_vocab).argmax()) if ids else -1
    if session._held.latest.next_logits.known:
        assert session.sample() == greedy
    if len(ids) > session.n_ctx - 3:
        session.rewind(session.n_ctx - 3)
        ids = tuple(session.tokens)
        greedy = int(remembering.row_of(source, ids, session.n_vocab).argmax())
    wanted = remembering.row_of(source, (*ids, 1, 2, 3), session.n_vocab)
    for _ in range(2):
        np.testing.assert_array_equal(session.eval([1, 2, 3]), wanted)
        assert session.tokens == [*ids, 1, 2, 3]
        session.rewind(len(ids))
    if ids:
        assert session.sample() == greedy
    session.eval([1, 2, 3])


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, graphml.Model]]:
    folder = tmp_path_factory.mktemp("interrupted")
    llama = tiny_model.write(folder / "llama.gguf")
    mamba, jamba, t5 = (
        write_model(folder / f"{one}.gguf", *MODELS[f"{one}-plain"]) for one in ("mamba", "jamba", "t5")
    )
    opened = {
        "llama": remembering.load(llama), "llama, as a GPU": remembering.load(llama, reads_back=True),
        "mamba": remembering.load(mamba), "mamba, as a GPU": remembering.load(mamba, reads_back=True),
        "jamba": remembering.load(jamba), "t5": remembering.load(t5),
        "llama, shared": remembering.load(llama, shares=True),
    }  # fmt: skip
    with opened["llama, shared"].session(n_ctx=64):  # so that no other one is alone
        yield opened
    for model in opened.values():
        model.close()


def begun(model: graphml.Model) -> graphml.Session:
    session = model.session(n_ctx=N_CTX, seed=1)
    if model.executor.encodes:
        session.encode(SOURCE)
    session.eval(BEFORE)
    return session


def generate(session: graphml.Session, **params: Any) -> None:
    list(session.generate(NEW[:3], graphml.SamplingParams(**params), 4))


def rewind_and_eval(session: graphml.Session) -> None:
    session.rewind(5)
    session.eval(NEW[:7])


def undo_and_eval(session: graphml.Session) -> None:
    """Back to where a copy of recurrent states was kept, and to another; there is room for four."""
    session.eval(NEW[:1])  # after which no states are kept, so that those before the next prompt are
    session.eval(NEW)
    session.rewind(len(BEFORE) + 2)
    for count in (2, 3, 4):
        session.eval(NEW[:count])
    session.rewind(len(BEFORE) + 6)
    session.eval(NEW[:2])


USES: dict[str, Callable[[graphml.Session], object]] = {
    "eval": lambda session: session.eval(NEW),
    "rewind and eval": rewind_and_eval,
    "undo and eval": undo_and_eval,
    "generate": generate,
    "generate at random": lambda session: generate(session, temperature=0.9, top_k=20),
    "shift": lambda session: session.shift(3, 4),
    "generate and shift": lambda session: list(
        session.generate(NEW, max_tokens=20, overflow="shift", keep=5)
    ),
}
CANNOT = [("t5", "generate"), ("t5", "generate at random"), ("t5", "generate and shift")]  # another source
CANNOT += [(name, use) for name in ("mamba", "mamba, as a GPU", "jamba") for use in USES if "shift" in use]
SCENES = [
    (name, use)
    for name in ("llama", "llama, as a GPU", "mamba", "mamba, as a GPU", "jamba", "t5", "llama, shared")
    for use in USES
    if (name, use) not in CANNOT
]
STRIDE = 89
"""Of so many places one is tried, in each scene others; with 1, all that there are take five minutes."""


@pytest.mark.parametrize("scene", range(len(SCENES)), ids=[", ".join(scene) for scene in SCENES])
def test_an_interrupt_anywhere(models: dict[str, graphml.Model], scene: int) -> None:
    name, use = SCENES[scene]
    model = models[name]
    USES[use](begun(model))  # compiles what it needs
    numbers = numbers_of(USES[use], begun(model))
    assert len(numbers) > (150 if use == "shift" else 500)
    for number in numbers[scene % STRIDE :: STRIDE]:
        session = begun(model)
        Tracer(number).watch(USES[use], session)
        check(session, SOURCE if name == "t5" else ())


def test_an_interrupt_leaves_no_exception_behind() -> None:
    """In a context's end too, which handles StopIteration: one of its lines leaves it to CPython."""

    @contextlib.contextmanager
    def context() -> Iterator[None]:
        yield

    def use() -> None:
        with context():
            pass

    numbers = numbers_of(use)
    assert len(numbers) > 10
    for number in numbers:
        assert Tracer(number).watch(use)
        assert sys.exc_info() == (None, None, None)


def encode(session: graphml.Session) -> None:
    session.encode(OTHER)
    session.eval(NEW)


@pytest.mark.parametrize("use", [encode, lambda session: list(session.generate(OTHER, max_tokens=3))])
def test_a_source_is_known_or_gone(
    models: dict[str, graphml.Model], use: Callable[[graphml.Session], object]
) -> None:
    model = models["t5"]
    for number in numbers_of(use, begun(model))[5::STRIDE]:
        session = begun(model)
        Tracer(number).watch(use, session)
        source = tuple(session.source)
        assert source in (SOURCE, OTHER, ())
        if source:
            check(session, source)
        else:
            with pytest.raises(graphml.UsageError, match="wanted one that was read before"):
                session.eval([1])


@pytest.mark.parametrize("name", ["llama", "mamba", "llama, as a GPU"])
def test_sessions_of_a_batch(models: dict[str, graphml.Model], name: str) -> None:
    prompts = [BEFORE[:3], NEW, BEFORE]

    def use() -> None:
        batch.eval(prompts)
        list(batch.generate([[4], [5, 6], [7]], max_tokens=2))

    batch = models[name].batch(3, n_ctx=64, seed=1)
    use()
    for number in numbers_of(use)[7 :: 2 * STRIDE]:
        batch = models[name].batch(3, n_ctx=64, seed=1)
        batch.eval([[8], [9], [10]])
        Tracer(number).watch(use)
        for session in batch.sessions:
            check(session)


@pytest.mark.parametrize("name", ["llama", "mamba"])
def test_a_progress_callback_that_raises(models: dict[str, graphml.Model], name: str) -> None:
    """At every call, the last of which comes when all is evaluated."""
    model = models[name]
    for at in (0, 8, 16, 20):

        def raises(what: str, done: int, total: int, at: int = at) -> None:
            if done == at:
                raise ZeroDivisionError

        session = begun(model)
        session._progress = raises
        with pytest.raises(ZeroDivisionError):
            session.eval([9] * 20)
        assert session.tokens == BEFORE
        session._progress = no_progress
        check(session)


@pytest.mark.parametrize("name", ["llama", "mamba"])
@pytest.mark.parametrize("inner", ["eval", "rewind", "interrupted"])
def test_a_session_used_within_its_own_evaluation(
    models: dict[str, graphml.Model], name: str, inner: str
) -> None:
    """Whatever a callback does with it: the outer evaluation says so, and commits nothing."""
    session = begun(models[name])

    def uses(what: str, done: int, total: int) -> None:
        if done == 8:
            session._progress = no_progress
            if inner == "rewind":
                session.rewind(2)
            elif inner == "eval":
                session.eval([60, 61, 62])
            else:  # eight cells are written where the outer evaluation has written its own
                Tracer(last).watch(lambda: session.eval([60] * 8))

    other = begun(models[name])
    last = max(number for number, place in of_cache(lambda: other.eval([60] * 8))) + 20
    session._progress = uses
    with pytest.raises(graphml.UsageError, match="used for something else while it evaluated"):
        session.eval([9] * 20)
    assert session.tokens == {"eval": [*BEFORE, 60, 61, 62], "rewind": BEFORE[:2]}.get(inner, BEFORE)
    check(session)


def of_cache(use: Callable[[], object]) -> list[tuple[int, Place]]:
    tracer = Tracer()
    tracer.watch(use)
    return [(i, place) for i, place in enumerate(tracer.places, 1) if place[0].endswith("pinned.py")]


def test_what_is_captured_belongs_to_what_is_held(models: dict[str, graphml.Model]) -> None:
    model = models["llama"]
    session = model.session(n_ctx=64, capture="logits", history=True)
    session.eval(BEFORE)
    row = session.captured["logits"]

    def raises(what: str, done: int, total: int) -> None:
        if done == total:
            raise ZeroDivisionError

    session._progress = raises
    with pytest.raises(ZeroDivisionError):
        session.eval([9] * 20)
    assert session.captured["logits"] is row
    assert len(session.history) == 1


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_a_real_ctrl_c(tmp_path: Path, backend: str) -> None:
    """Signals while a model on a real device evaluates: logits are a fresh session's."""
    path = tiny_model.write(tmp_path / "tiny.gguf")
    with graphml.load(path, backend, threads=2, n_batch=8, kv="f32") as model:
        session, fresh = model.session(), model.session()
        session.eval(BEFORE)
        landed = 0
        for delay in np.linspace(1e-4, 6e-3, 12):
            try:
                signal.setitimer(signal.ITIMER_REAL, delay)
                session.eval([9] * 20)
                time.sleep(1)
            except KeyboardInterrupt:
                landed += 1
            ids = session.tokens
            assert ids in (BEFORE, BEFORE + [9] * 20)
            fresh.rewind(0)
            fresh.eval(ids)
            np.testing.assert_allclose(session.eval([1, 2, 3]), fresh.eval([1, 2, 3]), atol=1e-4)
            session.rewind(len(BEFORE))
        assert landed == 12


@pytest.fixture(autouse=True)
def alarms_interrupt() -> Iterator[None]:
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    yield
    signal.signal(signal.SIGALRM, before)


def test_every_file_that_is_traced_is_there() -> None:
    assert all(Path(one).is_file() for one in TRACED)
