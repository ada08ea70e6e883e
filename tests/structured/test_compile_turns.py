"""Turns of those who have structures compiled: keys in turn, small ones first, and who leaves."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from graphml.errors import BusyError
from graphml.sampling.structured import compile_turns
from graphml.sampling.structured.compile_turns import LARGE, Asker, CompileTurns, asked_by, current_asker


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


class Crowd:
    """Threads that ask for turns, each of which ends when it is told to."""

    def __init__(self) -> None:
        self.turns = CompileTurns()
        self.begun: list[str] = []
        self.failed: dict[str, str] = {}
        self.ends: dict[str, threading.Event] = {}
        self.askers: dict[str, Asker] = {}
        self.threads: list[threading.Thread] = []

    def asks(self, name: str, key: str | None, size: int, waits: bool = True) -> None:
        """waits: whether no turn is free for it."""
        self.ends[name], self.askers[name] = threading.Event(), Asker(key)
        n_waiting = len(self.turns._waiting)

        def run() -> None:
            try:
                with self.turns.turn(self.askers[name], size):
                    self.begun.append(name)
                    self.ends[name].wait(30)
            except BusyError as error:
                self.failed[name] = str(error)

        self.threads.append(threading.Thread(target=run))
        self.threads[-1].start()
        until(lambda: (len(self.turns._waiting) > n_waiting) if waits else (name in self.begun))

    def ends_turn(self, name: str, n_begun: int) -> list[str]:
        """Who has begun so far, once that are so many."""
        self.ends[name].set()
        until(lambda: len(self.begun) >= n_begun)
        return self.begun[-1:]


@pytest.fixture
def crowd() -> Iterator[Crowd]:
    created = Crowd()
    yield created
    for end in created.ends.values():
        end.set()
    for thread in created.threads:
        thread.join(30)
    assert [*created.turns._waiting, *created.turns._running] == []


def test_keys_take_turns_and_each_has_its_smallest_first(crowd: Crowd) -> None:
    crowd.asks("a1", "a", 5, waits=False)
    crowd.asks("b1", "b", 5, waits=False)
    crowd.asks("a30", "a", 30)
    crowd.asks("a20", "a", 20)
    crowd.asks("a10", "a", 10)
    crowd.asks("b40", "b", 40)
    crowd.asks("c50", "c", 50)
    assert crowd.ends_turn("a1", 3) == ["c50"]  # which had no turn yet
    assert crowd.ends_turn("b1", 4) == ["a10"]
    assert crowd.ends_turn("c50", 5) == ["b40"]  # a has a turn, b has none
    assert crowd.ends_turn("b40", 6) == ["a20"]
    assert crowd.ends_turn("a10", 7) == ["a30"]


def test_a_small_one_never_waits_for_large_ones_alone(crowd: Crowd) -> None:
    crowd.asks("large", None, LARGE, waits=False)
    crowd.asks("another", None, LARGE)
    crowd.asks("small", None, LARGE - 1, waits=False)
    assert crowd.begun == ["large", "small"]
    crowd.asks("third", None, 7)
    assert crowd.ends_turn("large", 3) == ["third"]
    assert crowd.ends_turn("small", 4) == ["another"]


def test_who_leaves_gives_up_its_place_and_no_other(crowd: Crowd) -> None:
    crowd.asks("one", "a", 1, waits=False)
    crowd.asks("two", "a", 1, waits=False)
    crowd.asks("leaves", "a", 1)
    crowd.asks("stays", "a", 2)
    crowd.turns.leave(crowd.askers["leaves"])
    until(lambda: "leaves" in crowd.failed)
    assert [waiting.size for waiting in crowd.turns._waiting] == [2]
    assert crowd.ends_turn("one", 3) == ["stays"]


def test_so_many_may_wait_and_so_many_of_a_key(crowd: Crowd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_turns, "MOST_WAITING", 3)
    monkeypatch.setattr(compile_turns, "MOST_OF_ONE", 2)
    for name in ("one", "two"):
        crowd.asks(name, "a", 1, waits=False)
    for name in ("three", "four"):
        crowd.asks(name, "a", 1)
    with pytest.raises(BusyError, match="2 grammars and schemas wait to be compiled, 2 of them of this key"):
        crowd.turns._begun(Asker("a"), 1)
    crowd.asks("other", "b", 1)
    with pytest.raises(BusyError, match="3 grammars and schemas wait to be compiled, 0 of them of this key"):
        crowd.turns._begun(Asker("c"), 1)


def test_a_thread_rests_while_it_waits_and_compiles() -> None:
    events: list[str] = []

    @contextmanager
    def resting() -> Iterator[None]:
        events.append("rests")
        yield
        events.append("goes on")

    with CompileTurns().turn(Asker(None, resting), 1):
        events.append("turn")
    assert events == ["rests", "turn", "goes on"]


def test_an_asker_is_of_its_thread_and_block() -> None:
    asker, seen = Asker("a"), []
    with asked_by(asker):
        assert current_asker() is asker
        thread = threading.Thread(target=lambda: seen.append(current_asker()))
        thread.start()
        thread.join()
    assert (current_asker(), seen) == (None, [None])
