"""Drivers of GPU libraries: what cannot be is an error, and the device goes on."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from graphml_gpu.buffers import Used
from graphml_gpu.driver import Bound, Driver
from graphml_gpu.language import (
    Specialised,
)

from graphml.errors import BackendError
from tests.gpu.driven import GRID, Work, expected, opened


@dataclasses.dataclass(frozen=True, eq=False)
class Spoiled:
    """A kernel whose text is no text of its language."""

    real: Specialised

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def wgsl(self, *how: Any, **more: Any) -> str:
        return self.real.wgsl(*how, **more).replace("let i", "let nonsense = nowhere;\n    let i")

    def opencl(self) -> str:
        return self.real.opencl().replace("const uint i", "int nonsense = nowhere;\n    const uint i")


def test_a_kernel_that_cannot_be_compiled_is_shown_with_numbers(driver: Driver) -> None:
    work = Work(driver)
    spoiled: Any = Spoiled(work.kernel)
    with pytest.raises(BackendError, match=r"(?s)add_scaled.*nowhere.*\n +\d+ .*nonsense = nowhere;"):
        driver.record([work.bound(spoiled)])
    driver.submit(work.recording(), [GRID])
    assert work.result() == expected(2)


def wrong_offset(work: Work) -> None:
    size, scalars = 4 * work.n, (work.words, 0, 16)
    bound = Bound(work.kernel, ((work.arena, 2, size), (work.arena, work.y, size)), scalars)
    work.driver.submit(work.driver.record([bound]), [GRID])


def beyond(work: Work) -> None:
    work.driver.read([(work.arena, work.arena.n_bytes, 64)])


def written_beyond(work: Work) -> None:
    work.driver.write(work.arena, work.arena.n_bytes - 4, np.zeros(4, np.uint32))


def released_buffer(work: Work) -> None:
    gone = work.driver.buffer(4096, "the gone one")
    size, scalars = 4 * work.n, (work.words, 0, 16)
    recording = work.driver.record(
        [Bound(work.kernel, ((gone, 0, size), (work.arena, work.y, size)), scalars)]
    )
    gone.release()
    gone.release()
    with pytest.raises(BackendError, match="the gone one"):
        work.driver.read([(gone, 0, 4)])
    work.driver.submit(recording, [GRID])


def too_large(work: Work) -> None:
    work.driver.buffer(work.driver.facts.max_buffer_bytes + 4, "large")


@pytest.mark.parametrize("mistake", [wrong_offset, beyond, written_beyond, released_buffer, too_large])
def test_a_mistake_is_an_error_and_the_device_goes_on(
    driver: Driver, mistake: Callable[[Work], None]
) -> None:
    work = Work(driver)
    with pytest.raises(BackendError):
        mistake(work)
    driver.submit(work.recording(), [GRID])
    assert work.result() == expected(2)


def test_a_grid_beyond_the_device_is_an_error() -> None:
    driver = opened("wgpu")()  # OpenCL has no such limit
    work = Work(driver)
    recording = work.recording()
    with pytest.raises(BackendError, match="65536"):
        driver.submit(recording, [(65536, 1, 1)])
    driver.submit(recording, [GRID])
    assert work.result() == expected(2)


def test_a_launch_that_opencl_refuses_names_its_kernel() -> None:
    from graphml_opencl.driver import OpenclRecording

    driver = opened("opencl")()
    work = Work(driver)
    (kernel, group), *_ = work.recording().calls  # type: ignore[attr-defined]
    wrong = OpenclRecording([(kernel, group), (kernel, (1 << 30, 1, 1))], Used([work.bound()]), ())
    with pytest.raises(BackendError, match="add_scaled: cannot be run: INVALID_WORK_GROUP_SIZE"):
        driver.submit(wrong, [(0, 1, 1), GRID])
    with pytest.raises(BackendError, match="a grid for each of 2 dispatches; got 1"):
        driver.submit(wrong, [GRID])
    driver.submit(work.recording(), [GRID])
    assert work.result() == expected(2)


def test_more_than_the_device_has_is_refused_and_what_is_released_counts_no_more(driver: Driver) -> None:
    kept: Any = driver
    real = kept.facts
    kept.facts = dataclasses.replace(real, memory_bytes=kept.buffers.n_bytes + 100_000)
    try:
        first = driver.buffer(60_000, "first")
        with pytest.raises(BackendError, match=r"second: 60000 bytes cannot be allocated \(\d+ are\)"):
            driver.buffer(60_000, "second")
        first.release()
        driver.buffer(60_000, "second").release()
    finally:
        kept.facts = real


def test_another_thread_and_another_driver_may_have_their_turn(driver: Driver) -> None:
    work, other = Work(driver), Work(type(driver)())

    def steps() -> list[float]:
        for each in (work, other, work):
            each.driver.submit(each.recording(), [GRID])
        with pytest.raises(BackendError):
            beyond(work)
        return work.result()

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(steps).result(60) == expected(4)
    assert other.result() == expected(2)
    other.driver.close()
    driver.submit(work.recording(), [GRID])
    assert work.result() == expected(6)


def test_a_lost_device_is_an_error_and_another_can_be_opened(caplog: pytest.LogCaptureFixture) -> None:
    made = opened("wgpu")()
    work = Work(made)
    recording = work.recording()
    with caplog.at_level(logging.CRITICAL, "wgpu"):
        made._device.destroy()
        for use in (
            lambda: made.submit(recording, [GRID]),
            work.result,
            lambda: work.give(1.0),
            lambda: made.buffer(64, "more"),
        ):
            with pytest.raises(BackendError, match="lost"):
                use()
    again = Work(opened("wgpu")())
    again.driver.submit(again.recording(), [GRID])
    assert again.result() == expected(2)
    again.driver.close()


@pytest.mark.parametrize("done", [False, True], ids=["before its work", "after its work"])
def test_ctrl_c_within_a_callback_is_raised_and_loses_nothing(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, done: bool
) -> None:
    """wgpu calls back when results can be read; what is raised there would be printed and forgotten."""
    queue: Any = getattr(driver, "_queue", None)
    if not hasattr(queue, "_is_mapped"):
        pytest.skip("a driver without callbacks")
    work, real, calls = Work(driver), queue._is_mapped, []

    def interrupted(mapping: Any, status: int) -> None:
        calls.append(status)
        if done or len(calls) > 1:
            real(mapping, status)
        if len(calls) == 1:
            raise KeyboardInterrupt

    driver.submit(work.recording(), [GRID])
    monkeypatch.setattr(queue, "_is_mapped", interrupted)
    with pytest.raises(KeyboardInterrupt):
        work.result()
    assert len(calls) == (1 if done else 2)
    monkeypatch.undo()
    assert work.result() == expected(2)
