"""The drivers of GPU libraries, each on the first device of this machine: memory, recordings, times."""

from __future__ import annotations

import hashlib
import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from graphml_gpu.driver import Bound, Buffer, Driver, writable
from graphml_gpu.language import (
    PORTABLE,
    Read,
    Specialised,
    Update,
    Write,
    f32,
    global_id,
    group_sum,
    kernel,
    subgroup_sum,
    u32,
    unpack_half2,
)

from graphml.errors import BackendError
from tests.gpu.driven import GRID, Work, add_scaled, expected, opened


@kernel
def sums(x: Read[f32], out: Write[f32], *, GROUP: int = 64) -> None:
    """The sum of a workgroup's elements, for each of them. x, out [groups * GROUP]."""
    i = global_id(0)
    out[i] = group_sum(x[i])


@kernel
def add_halves(x: Read[u32], y: Update[f32], n: u32, factor: f32, *, GROUP: int = 64) -> None:
    """y += factor x. x [n], halves of which every second counts; y [n]."""
    i = global_id(0)
    if i < n:
        pair = unpack_half2(x[i])
        y[i] = y[i] + factor * pair.x


def test_facts_are_those_of_a_device_that_can_be_used(driver: Driver) -> None:
    facts = driver.facts
    assert facts.name
    assert facts.driver
    assert facts.max_binding_bytes >= 1 << 27
    assert facts.max_binding_bytes <= facts.max_buffer_bytes
    assert facts.max_group >= 256
    assert facts.max_groups >= 65535
    assert facts.shared_bytes >= 16384
    assert facts.offset_alignment in (4, 16, 32, 64, 128, 256, 512)
    assert 1 <= facts.subgroup_min <= facts.subgroup_max
    features = facts.features()
    assert (features.subgroups, features.f16, features.dot4) == (
        facts.has_subgroups,
        facts.has_f16,
        facts.has_dot4,
    )
    assert features.subgroup_min == facts.subgroup_min


@kernel
def subgroup_sizes(out: Write[u32], *, GROUP: int = 64) -> None:
    """How many invocations each one's subgroup has. out [groups * GROUP]."""
    out[global_id(0)] = subgroup_sum(u32(1))


def test_subgroups_are_as_large_as_the_facts_say(driver: Driver) -> None:
    facts = driver.facts
    if not facts.has_subgroups:
        pytest.skip(f"{facts.name} has no subgroups")
    made, out, words = (
        subgroup_sizes.specialise(facts.features()),
        driver.buffer(256, "out"),
        driver.buffer(16, "w"),
    )
    driver.write(words, 0, made.words({}))
    driver.submit(driver.record([Bound(made, ((out, 0, 256),), (words, 0, 16))]), [(1, 1, 1)])
    found = driver.read([(out, 0, 256)])[0].view(np.uint32)
    assert facts.subgroup_min <= found.min() <= found.max() <= facts.subgroup_max
    if "llvmpipe" in facts.name:  # it has one size; wgpu-py tells 4 to 128 of every device
        assert facts.subgroup_min == facts.subgroup_max == found[0]


def test_what_is_read_later_is_what_was_there(driver: Driver) -> None:
    """Each of several readings sees what was submitted before it, in whatever order they are waited for."""
    work = Work(driver)
    driver.clear(work.arena, work.y, 400)
    recording, ranges = work.recording(), [(work.arena, work.y, 400), (work.arena, work.x, 8)]
    waiting = []
    for _ in range(4):
        driver.submit(recording, [GRID])
        waiting.append(driver.later(ranges))
    del waiting[1]  # nobody wants it any more
    found = [wait() for wait in reversed(waiting)]
    assert [y.view(np.float32).tolist() for y, _ in found] == [expected(2.0 * n) for n in (4, 3, 1)]
    assert all(x.view(np.float32).tolist() == [0.0, 1.0] for _, x in found)
    assert driver.later([])() == []
    assert work.result() == expected(8.0)


@pytest.mark.parametrize("timed", [False, True])
def test_copies_are_made_before_the_dispatches(driver: Driver, timed: bool) -> None:
    work, other = Work(driver), driver.buffer(16, "seven")
    driver.clear(work.arena, work.y, 400)
    driver.write(other, 4, np.float32([7.0]))
    copies = [((other, 4, 4), (work.arena, work.x + 8, 4))]
    driver.submit(work.recording(), [GRID], timed and driver.facts.has_timestamps, copies)
    assert work.result() == [14.0 if i == 2 else 2.0 * i for i in range(100)]


def test_memory_begins_zeroed_and_is_cleared(driver: Driver) -> None:
    buffer = driver.buffer(4096, "zeros")
    (found,) = driver.read([(buffer, 0, 4096)])
    assert not found.any()
    driver.write(buffer, 0, np.full(1024, 7, np.uint32))
    driver.clear(buffer, 8, 12)
    (found,) = driver.read([(buffer, 0, 24)])
    assert found.view(np.uint32).tolist() == [7, 7, 0, 0, 0, 7]


def modules_with(driver: Driver, name: str) -> list[ModuleType]:
    """The modules of the driver's package that have a constant."""
    package, _, _ = type(driver).__module__.rpartition(".")
    every = [one for path, one in sys.modules.items() if path.startswith(f"{package}.")]
    return [one for one in every if hasattr(one, name)]


def test_what_is_written_is_read_in_pieces_of_any_place(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("UPLOAD", "READBACK", "COPIED"):  # pieces smaller than the data
        for module in modules_with(driver, name):
            monkeypatch.setattr(module, name, 64)
    data = np.random.default_rng(1).integers(0, 256, 1000, np.uint8)
    buffer = driver.buffer(1200, "data")
    driver.write(buffer, 100, data)
    driver.write(buffer, 4, b"abcd")
    driver.write(buffer, 0, np.zeros(0, np.uint8))
    parts = driver.read(
        [(buffer, 100, 1000), (buffer, 4, 4), (buffer, 0, 0), (buffer, 104, 60), (buffer, 1100, 8)]
    )
    assert parts[0].tolist() == data.tolist()
    assert parts[1].tobytes() == b"abcd"
    assert parts[2].size == 0
    assert parts[3].tolist() == data[4:64].tolist()
    assert parts[4].tolist() == [0] * 8


def test_ranges_are_copied_on_the_device(driver: Driver) -> None:
    source, target = driver.buffer(64, "source"), driver.buffer(64, "target")
    driver.write(source, 0, np.arange(16, dtype=np.uint32))
    driver.copy(source, 8, target, 32, 12)
    driver.copy(target, 32, target, 0, 4)
    (found,) = driver.read([(target, 0, 48)])
    assert found.view(np.uint32).tolist() == [2, 0, 0, 0, 0, 0, 0, 0, 2, 3, 4, 0]


def test_a_recording_runs_again_with_what_was_written_since(driver: Driver) -> None:
    work = Work(driver)
    recording = work.recording()
    assert len(recording) == 1
    driver.submit(recording, [GRID])
    work.give(0.5)  # ordered between the two, though nothing was waited for
    driver.submit(recording, [GRID])
    assert work.result() == expected(2.5)


def test_dispatches_see_what_those_before_them_wrote(driver: Driver) -> None:
    work = Work(driver)
    driver.submit(work.recording(40), [GRID] * 40)
    assert work.result() == expected(80)


def test_a_grid_decides_how_much_runs_and_none_leaves_a_dispatch_out(driver: Driver) -> None:
    work = Work(driver)
    driver.submit(work.recording(3), [(0, 1, 1), (1, 1, 1), (2, 0, 1)])
    assert work.result() == [*expected(2)[:64], *[0.0] * 36]


@pytest.mark.parametrize("portable", [False, True])
def test_groups_meet_with_the_devices_features_and_without(driver: Driver, portable: bool) -> None:
    features = PORTABLE if portable else driver.facts.features()
    made = sums.specialise(features, GROUP=128)
    values = np.random.default_rng(2).integers(0, 99, 256).astype(np.float32)
    buffers = [driver.buffer(1024, "x"), driver.buffer(1024, "out"), driver.buffer(256, "words")]
    driver.write(buffers[0], 0, values)
    driver.write(buffers[2], 0, made.words({}))
    ranges = [(buffer, 0, buffer.n_bytes) for buffer in buffers]
    driver.submit(driver.record([Bound(made, tuple(ranges[:2]), ranges[2])]), [(2, 1, 1)])
    (found,) = driver.read([(buffers[1], 0, 1024)])
    assert found.view(np.float32).reshape(2, 128).tolist() == [
        [float(v.sum())] * 128 for v in values.reshape(2, 128)
    ]


def test_times_are_of_each_dispatch_in_order(driver: Driver) -> None:
    if not driver.facts.has_timestamps:
        pytest.skip(f"{driver.facts.name} has no timestamps")
    work = Work(driver)
    driver.submit(work.recording(5), [GRID, (0, 1, 1), GRID, GRID, GRID], timed=True)
    times = driver.times()
    assert len(times) == 5
    assert all(begin <= end for begin, end in times)
    assert [begin for begin, _ in times] == sorted(begin for begin, _ in times)
    assert 0 < times[-1][1] - times[0][0] < 60e9
    assert work.result() == expected(8)


def test_more_timestamps_than_a_query_set_holds(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in modules_with(driver, "QUERIES"):
        monkeypatch.setattr(module, "QUERIES", 32)
    fresh = type(driver)()
    work = Work(fresh)
    fresh.submit(work.recording(50), [GRID] * 50, timed=True)
    times = fresh.times()
    fresh.close()
    assert len(times) == 50
    assert [begin for begin, _ in times] == sorted(begin for begin, _ in times)
    assert times[-1][1] > times[0][0]


def test_compiling_reports_progress(driver: Driver) -> None:
    work, heard = Work(driver), []
    driver.record([work.bound()] * 3, lambda *words: heard.append(words))
    assert heard == [("record", 0, 3), ("record", 1, 3), ("record", 2, 3), ("record", 3, 3)]


def test_buffers_shared_with_a_written_one_are_bound_as_written(driver: Driver) -> None:
    work = Work(driver)
    assert writable(work.bound()) == {"x", "y"}
    other: Buffer = driver.buffer(512, "other")
    size, scalars = 4 * work.n, (work.words, 0, 16)
    bound = Bound(work.kernel, ((other, 0, size), (work.arena, work.y, size)), scalars)
    assert writable(bound) == {"y"}
    driver.write(other, 0, np.ones(work.n, np.float32))
    driver.submit(driver.record([bound, work.bound()]), [GRID, GRID])
    assert work.result() == (2 * np.arange(100) + 2).tolist()


def test_binaries_of_opencl_programs_are_kept_and_a_damaged_one_is_made_again(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRAPHML_CACHE", str(tmp_path))
    monkeypatch.setattr("graphml_opencl.programs._KEEPS_PROGRAMS", "another platform than PoCL")
    kind = opened("opencl")
    import pyopencl

    def run() -> list[float]:
        work = Work(kind())
        work.driver.submit(work.recording(), [GRID])
        return work.result()

    assert run() == expected(2)
    (path,) = (tmp_path / "opencl").iterdir()
    sources: list[object] = []
    real = pyopencl.Program

    def watched(context: Any, *given: Any) -> Any:
        sources.extend(value for value in given if isinstance(value, str))
        return real(context, *given)

    monkeypatch.setattr(pyopencl, "Program", watched)
    assert run() == expected(2)
    assert sources == []
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 3])
    assert run() == expected(2)
    assert len(sources) == 1
    assert run() == expected(2)
    assert len(sources) == 1
    whole = path.read_bytes()  # some drivers make others of the same text
    path.write_bytes(_kept_for_another_text(whole))
    assert run() == expected(2)
    assert len(sources) == 2
    path.parent.chmod(0o777)  # others may write there
    assert run() == expected(2)
    assert len(sources) == 3


def test_opencl_texts_that_are_new_are_built_together(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several times the same names in one program; beside a text that the compiler refuses, each alone.

    A text is written once, however often its kernel comes.
    """
    monkeypatch.setenv("GRAPHML_CACHE", str(tmp_path))
    kind = opened("opencl")
    import pyopencl

    work, built = Work(kind()), list[str]()
    real, text, written = pyopencl.Program, Specialised.opencl, list[Specialised]()
    monkeypatch.setattr(pyopencl, "Program", lambda of, text: built.append(text) or real(of, text))
    monkeypatch.setattr(Specialised, "opencl", lambda one: written.append(one) or text(one))
    sizes = [add_scaled.specialise(work.driver.facts.features(), GROUP=size) for size in (16, 32, 64)]
    recording = work.driver.record([work.bound(one) for one in (*sizes, *sizes)])
    work.driver.submit(recording, [(100 // size + 1, 1, 1) for size in (16, 32, 64)] * 2)
    assert work.result() == expected(12)
    assert len(built) == 1
    assert written == sizes
    work.driver.record([work.bound(add_halves.specialise(PORTABLE, GROUP=size)) for size in (16, 32)])
    assert len(built) == 2  # of what both begin with each has its own
    wrong, other = (add_scaled.specialise(work.driver.facts.features(), GROUP=size) for size in (8, 4))
    monkeypatch.setattr(Specialised, "opencl", lambda one: text(one) + (";nonsense" * (one is wrong)))
    with pytest.raises(BackendError, match=r"(?s)GROUP = 8.*nonsense"):
        work.driver.record([work.bound(other), work.bound(wrong)])
    work.driver.submit(work.driver.record([work.bound(other)]), [(25, 1, 1)])
    assert work.result() == expected(14)


def test_pyopencls_own_cache_of_pickles_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = opened("opencl")
    from pytools.persistent_dict import WriteOncePersistentDict

    asked: list[object] = []
    for method in ("__getitem__", "store", "store_if_not_present"):
        monkeypatch.setattr(WriteOncePersistentDict, method, lambda *given: asked.append(given))
    work = Work(kind())
    work.driver.submit(work.recording(), [GRID])
    assert work.result() == expected(2)
    assert asked == []


def _kept_for_another_text(whole: bytes) -> bytes:
    """A binary file as it would be under another program's name, or in a format without one."""
    return hashlib.sha256(whole[32:]).digest() + whole[32:]
