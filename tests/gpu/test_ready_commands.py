"""Command buffers that worker threads make ahead: results, errors where they belong, none left over."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from graphml_gpu.driver import Bound, Driver

from graphml.errors import BackendError
from tests.gpu.driven import GRID, Work, expected, opened
from tests.young_garbage import kept_young


@pytest.fixture
def wgpu_driver() -> Iterator[Any]:
    made = opened("wgpu")()
    yield made
    made.close()


def encoded_by(driver: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the threads that encode dispatches, from now on."""
    real, names = driver._queue.compute, list[str]()

    def compute(*arguments: Any) -> None:
        names.append(threading.current_thread().name)
        real(*arguments)

    monkeypatch.setattr(driver._queue, "compute", compute)
    return names


def test_commands_made_ahead_read_what_was_written_meanwhile(
    wgpu_driver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, names = Work(wgpu_driver), encoded_by(wgpu_driver, monkeypatch)
    recording = work.recording()
    for factor in (1.0, 2.0, 4.0, 8.0, 16.0, 32.0):
        work.give(factor)
        wgpu_driver.submit(recording, [GRID])
    assert work.result() == expected(63)
    ahead = [name for name in names if name.startswith("graphml-wgpu")]
    assert len(ahead) >= 4
    assert len(names) - len(ahead) == 2  # the steps before grids repeat


def test_other_grids_and_copies_take_no_commands_made_for_others(wgpu_driver: Any) -> None:
    work = Work(wgpu_driver)
    recording = work.recording()
    source = wgpu_driver.buffer(4 * work.n, "source")
    wgpu_driver.write(source, 0, np.ones(work.n, np.float32))
    copy = ((source, 0, 4 * work.n), (work.arena, work.y, 4 * work.n))
    for _ in range(4):
        wgpu_driver.submit(recording, [GRID])
    assert work.result() == expected(8)
    wgpu_driver.submit(recording, [(0, 1, 1)])
    assert work.result() == expected(8)
    for _ in range(3):
        wgpu_driver.submit(recording, [GRID], copies=[copy])
    assert work.result() == (np.array(expected(2)) + 1).tolist()
    wgpu_driver.submit(recording, [GRID])
    assert work.result() == (np.array(expected(4)) + 1).tolist()


def test_what_a_submit_reads_is_as_its_dispatches_leave_it(driver: Driver) -> None:
    work = Work(driver)
    recording, where = work.recording(), (work.arena, work.y, 4 * work.n)
    waiting = [driver.submit(recording, [GRID], reads=[where, where]) for _ in range(5)]
    for i, wait in reversed(list(enumerate(waiting, 1))):
        assert [one.view(np.float32).tolist() for one in wait()] == [expected(2 * i)] * 2
    assert driver.submit(recording, [GRID])() == []


def test_commands_made_ahead_are_not_submitted_once_a_buffer_is_gone(wgpu_driver: Any) -> None:
    work = Work(wgpu_driver)
    gone = wgpu_driver.buffer(4096, "the gone one")
    size, scalars = 4 * work.n, (work.words, 0, 16)
    bound = Bound(work.kernel, ((gone, 0, size), (work.arena, work.y, size)), scalars)
    recording = wgpu_driver.record([bound])
    for _ in range(3):
        wgpu_driver.submit(recording, [GRID])
    gone.release()
    with pytest.raises(BackendError, match="the gone one was released"):
        wgpu_driver.submit(recording, [GRID])
    wgpu_driver.submit(work.recording(), [GRID])
    assert work.result() == expected(2)


def test_a_device_lost_with_commands_made_ahead_is_an_error(caplog: pytest.LogCaptureFixture) -> None:
    made = opened("wgpu")()
    work = Work(made)
    recording, where = work.recording(), (work.arena, work.y, 4 * work.n)
    for _ in range(3):
        made.submit(recording, [GRID])
    with caplog.at_level(logging.CRITICAL, "wgpu"):
        made._device.destroy()
        for reads in ([], [where], [], [where]):
            with pytest.raises(BackendError, match="lost"):
                made.submit(recording, [GRID], reads=reads)
        made.close()


def test_an_error_on_a_worker_is_raised_by_the_submit_if_it_comes_again(
    wgpu_driver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, real = Work(wgpu_driver), wgpu_driver._queue.encode
    recording, failing = work.recording(), {"graphml-wgpu"}

    def encode(inner: Any) -> Any:
        if threading.current_thread().name.rsplit("_")[0] in failing:
            raise BackendError("no memory for commands")
        return real(inner)

    monkeypatch.setattr(wgpu_driver._queue, "encode", encode)
    for _ in range(4):
        wgpu_driver.submit(recording, [GRID])
    assert work.result() == expected(8)
    failing.add(threading.current_thread().name)
    with pytest.raises(BackendError, match="no memory for commands"):
        wgpu_driver.submit(recording, [GRID])
    failing.clear()
    assert work.result() == expected(8)


def test_commands_that_nobody_takes_go_with_their_recording(wgpu_driver: Any) -> None:
    with kept_young() as collect:
        work = Work(wgpu_driver)
        recording: Any = work.recording()
        for _ in range(3):
            wgpu_driver.submit(recording, [GRID])
        left = [weakref.ref(one.result()) for one in recording.ready._made]
        assert len(left) == 2
        del recording
        collect()
    wgpu_driver._workers.submit(int).result()  # a worker lets go of its last work with the next
    wgpu_driver._workers.submit(int).result()
    assert [one() for one in left] == [None, None]


def test_a_thread_takes_steps_after_the_main_thread_has_ended(wgpu_driver: Any) -> None:
    """The interpreter then ends the workers of pools before it waits for other threads."""
    work = Work(wgpu_driver)
    recording = work.recording()
    for _ in range(3):
        wgpu_driver.submit(recording, [GRID])
    wgpu_driver._workers.shutdown()
    for _ in range(4):
        wgpu_driver.submit(recording, [GRID])
    assert work.result() == expected(14)


def test_a_grid_is_wanted_for_each_dispatch(wgpu_driver: Any) -> None:
    recording = Work(wgpu_driver).recording(2)
    with pytest.raises(BackendError, match="a grid for each of 2 dispatches; got 1"):
        wgpu_driver.submit(recording, [GRID])


def test_a_buffer_is_given_back_when_nothing_is_encoded_with_it(
    wgpu_driver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """wgpu ends the process where a command buffer is being made of a buffer that is destroyed."""
    work, begun, go_on = Work(wgpu_driver), threading.Event(), threading.Event()
    recording = work.recording()
    real = wgpu_driver._queue.compute

    def compute(*arguments: Any) -> None:
        if threading.current_thread().name.startswith("graphml-wgpu"):
            begun.set()
            go_on.wait(10)
        real(*arguments)

    monkeypatch.setattr(wgpu_driver._queue, "compute", compute)
    for _ in range(2):
        wgpu_driver.submit(recording, [GRID])
    assert begun.wait(10)
    threading.Timer(0.05, go_on.set).start()
    work.arena.release()
    assert go_on.is_set()
    with pytest.raises(BackendError, match="was released"):
        wgpu_driver.submit(recording, [GRID])
