"""What is bound in one dispatch never overlaps where it is written, as WebGPU wants it: plans, and how."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from graphml_gpu.bindings import ArgumentSpan, shared
from graphml_gpu.driver import Bound, Driver, overlapping
from graphml_gpu.language import Kernel, Read, Specialised, Write, f32, f32x4, global_id, i32, kernel
from graphml_gpu.plain_driver import FACTS, PlainDriver

from graphml.errors import BackendError
from tests.gpu.dawn import complaints_of_dispatches
from tests.gpu.plans import dispatches

MODELS = (
    "llama-dense",
    "bailingmoe3-moe",  # rope and delta nets in place
    "falcon-h1-dense",  # state spaces: bindings that are shared for want of others
    "plamo2-dense",
    "kimi-k3-moe",  # softmax
    "minimax-01-moe",  # linear attention
    "hy_v4-moe",  # two parts of a workspace, of which the first begins within the second's binding
)
"""Between them every kernel that any golden has in place."""


@pytest.mark.parametrize("name", MODELS)
def test_no_dispatch_of_a_model_has_bindings_that_overlap(name: str) -> None:
    found = dispatches(name)
    assert len(found) > 20
    assert [(bound.kernel.title, both) for bound, _ in found if (both := overlapping(bound))] == []


@pytest.mark.parametrize("name", MODELS)
def test_dawn_takes_every_dispatch_of_a_model(name: str) -> None:
    """With the kernels, their layouts and the ranges that are bound, as planned."""
    assert complaints_of_dispatches(dispatches(name)) == []


ANY = replace(FACTS, overlaps=True)


def test_devices_that_take_overlaps_are_given_some() -> None:
    """So that the tests above can fail; and there each kernel is one text, in place or not."""
    found = dispatches("llama-dense", ANY)
    assert {bound.kernel.name for bound, _ in found if overlapping(bound)} == {"binary", "rope_writes"}
    assert not any(bound.kernel.shares for bound, _ in found)


def test_dawn_refuses_bindings_that_overlap() -> None:
    some = complaints_of_dispatches(dispatches("llama-dense", ANY))
    assert {one.split(":")[0] for one in some} == {"binary", "rope_writes"}
    assert all("aliasing" in one for one in some)


def test_the_emulator_refuses_them_too() -> None:
    driver = PlainDriver()
    memory, words = driver.buffer(1024, "arena"), driver.buffer(256, "words")
    bound = Bound(mixes.specialise(), ((memory, 0, 16),) * 4, (words, 0, 32))
    with pytest.raises(BackendError, match="kernel mixes: its bindings a and b overlap, and one is written"):
        driver.submit(driver.record([bound]), [(1, 1, 1)])


@kernel
def mixes(a: Read[f32], b: Read[f32], c: Read[i32], out: Write[f32], *, GROUP: int = 4) -> None:
    i = global_id(0)
    out[i] = a[i] + b[i] * f32(c[i])


@kernel
def widens(a: Read[f32x4], out: Write[f32], *, GROUP: int = 4) -> None:
    i = global_id(0)
    out[i] = a[i].x


Spans = Mapping[str, tuple[int, int]]
APART: Spans = {"a": (0, 16), "b": (16, 32), "c": (32, 48), "out": (48, 64)}


def _shared(spans: Spans, most: int = 8, overlaps: bool = False, of: Kernel = mixes) -> Specialised:
    """What becomes of a kernel whose arguments lie at these bytes of one arena."""
    return shared(of.specialise(), lambda name: ArgumentSpan("arena", *spans[name]), most, overlaps)


def test_what_lies_apart_is_bound_alone() -> None:
    assert _shared(APART) is mixes.specialise()


def test_a_result_in_place_and_its_operand_are_one_binding() -> None:
    made = _shared({**APART, "b": (48, 64)})
    assert made.shares == {"out": "b"}
    assert [(one.name, one.access) for one in made.buffers] == [
        ("a", "read"), ("b", "update"), ("c", "read"),
    ]  # fmt: skip
    assert _shared({**APART, "b": (48, 64)}) is made  # compiled once


def test_an_operand_read_twice_is_one_binding_where_the_result_lies_in_its_buffer() -> None:
    """For all of a buffer of which some is written is bound as written."""
    assert _shared({**APART, "b": (0, 16)}).shares == {"b": "a"}


def test_what_a_shared_binding_stretches_over_is_part_of_it() -> None:
    between = {"a": (0, 16), "out": (16, 32), "b": (32, 48), "c": (48, 64)}
    assert _shared(between, most=3).shares == {"out": "a"}  # not "b" with it
    assert _shared({**between, "b": (8, 12)}, most=3).shares == {"b": "a"}
    assert _shared({**between, "b": (8, 24)}).shares == {"b": "a", "out": "a"}
    assert _shared({**between, "out": (48, 64), "c": (16, 32)}, most=1).shares == {
        "b": "a", "c": "a", "out": "a",
    }  # fmt: skip


IN_PLACE: Spans = {"a": (0, 16), "c": (16, 32), "out": (16, 32), "b": (32, 48)}


def test_integers_may_lie_in_a_binding_of_floats() -> None:
    made = _shared(IN_PLACE, most=2)
    assert made.shares == {"b": "a", "c": "a", "out": "a"}
    arena, wanted, begins = _arena()
    made.run_python({"a": arena}, begins, (1, 1, 1))
    assert arena[4:8].tolist() == wanted


def test_devices_read_integers_in_a_binding_of_floats(driver: Driver) -> None:
    made = _shared(IN_PLACE, most=2)
    arena, wanted, begins = _arena()
    held, words = driver.buffer(arena.nbytes, "arena"), driver.buffer(256, "words")
    driver.write(held, 0, arena)
    driver.write(words, 0, made.words(begins))
    bound = Bound(made, ((held, 0, arena.nbytes),), (words, 0, 4 * len(made.scalars)))
    driver.submit(driver.record([bound]), [(1, 1, 1)])
    (read,) = driver.read([(held, 16, 16)])
    assert read.view(np.float32).tolist() == wanted


def _arena() -> tuple[np.ndarray[Any, np.dtype[np.float32]], list[float], dict[str, int]]:
    """a, b and c, which is integers, what `mixes` makes of them in place of c, and where they begin."""
    arena, integers = np.arange(12, dtype=np.float32), np.array([1, -2, 3, 1 << 20], np.int32)
    wanted: list[float] = (arena[:4] + arena[8:] * integers.astype(np.float32)).tolist()
    arena[4:8] = integers.view(np.float32)
    return arena, wanted, {"a_at": 0, "b_at": 8, "c_at": 4, "out_at": 4}


def test_elements_that_are_no_words_cannot_overlap_others() -> None:
    with pytest.raises(
        BackendError, match="kernel widens: a, out overlap and one of them is written: wanted"
    ):
        _shared({"a": (0, 64), "out": (48, 64)}, of=widens)


@kernel
def adds(a: Read[f32x4], b: Read[f32], out: Write[f32], *, GROUP: int = 4) -> None:
    i = global_id(0)
    out[i] = a[0].x + a[0].w + b[i]


def test_a_vector_is_read_in_a_binding_of_words(driver: Driver) -> None:
    """As a product reads its input, which is added to the result too."""
    made = _shared({"a": (16, 32), "b": (16, 32), "out": (32, 48)}, of=adds)
    assert made.shares == {"a": "b"}
    numbers = np.arange(8, dtype=np.float32)
    held, out, words = (driver.buffer(256, name) for name in ("numbers", "out", "words"))
    driver.write(held, 0, numbers)
    driver.write(words, 0, made.words({"a_at": 1, "b_at": 4, "out_at": 0}))
    bound = Bound(made, ((held, 0, 32), (out, 0, 16)), (words, 0, 4 * len(made.scalars)))
    driver.submit(driver.record([bound]), [(1, 1, 1)])
    (read,) = driver.read([(out, 0, 16)])
    assert read.view(np.float32).tolist() == [15.0, 16.0, 17.0, 18.0]


def test_devices_that_take_overlaps_have_bindings_of_their_own() -> None:
    assert _shared({**APART, "b": (48, 64)}, overlaps=True) is mixes.specialise()
