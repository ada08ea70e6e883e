"""Equal functions are made into one thing, others never; which kernels' helpers rely on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from graphml_cpu import only_once
from graphml_cpu.frontend import functions
from graphml_cpu.kernel_cache import KernelRef


class Made:
    """What a decorator makes of a function, as functions of kernels are callables of it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self) -> Any:
        return self.function()


@pytest.fixture
def make() -> Callable[[Any], Made]:
    """A factory of functions that give what they read of it, made into something."""
    decorate = only_once.only_once(Made)

    def factory(value: Any) -> Made:
        @decorate
        def reads() -> Any:
            return value

        return reads

    return factory


@pytest.mark.parametrize("value", [3, "q4_0", None, -0.0, float("nan"), (1, ("a", 2.0)), len, b"x"], ids=repr)
def test_equal_surroundings_are_one(make: Callable[[Any], Made], value: Any) -> None:
    assert make(value) is make(value)


@pytest.mark.parametrize(
    ("one", "other"), [(1, 2), (1, True), (1, 1.0), (0.0, -0.0), ((1,), 1), ((1, 2), (1, 2.0)), (len, max)]
)
def test_others_are_told_apart(make: Callable[[Any], Made], one: Any, other: Any) -> None:
    made = make(one), make(other)
    assert made[0] is not made[1]
    assert repr((made[0](), made[1]())) == repr((one, other))


def test_what_may_change_is_not_shared(make: Callable[[Any], Made]) -> None:
    value = [1]
    assert make(value) is not make(value)


def test_functions_of_equal_functions_are_one(make: Callable[[Any], Made]) -> None:
    assert make(make(3)) is make(make(3))
    assert make(make(3)) is not make(make(4))


def test_code_and_what_is_not_there_yet_are_told_apart() -> None:
    decorate = only_once.only_once(Made)

    def ahead(number: int) -> tuple[Made, Made]:
        first = decorate(lambda: later)
        later = number
        return first, decorate(lambda: number)

    made = [*ahead(1), *ahead(2), *ahead(2)]
    assert [one() for one in made] == [1, 1, 2, 2, 2, 2]
    assert len(set(map(id, made))) == 5  # the last two that read `number` alone are one


def test_no_more_are_kept_than_said(make: Callable[[Any], Made]) -> None:
    first, second = make(0), make(1)
    for number in range(2, only_once.KEPT):
        make(number)
    assert make(0) is first
    make(only_once.KEPT)
    assert make(0) is first
    assert make(1) is not second


def test_a_kernel_of_the_same_format_compiles_the_reader_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of two tokens and those of seven have panels of the same format."""
    from graphml_cpu import compiler

    made: list[str] = []
    real = functions.Emitted.__init__

    def counted(self: Any, function: Any, *given: Any) -> None:
        made.append(function.__module__)
        real(self, function, *given)

    monkeypatch.setattr(functions.Emitted, "__init__", counted)
    module = "graphml_cpu.kernels.products.mul_mat"
    for tokens in (2, 7):  # which nobody else compiles
        made.clear()
        compiler.assembly(KernelRef(f"{tokens}", module, "make_mul_mat_tiles", ("q8_0", tokens)))
    assert any("integer_tiles" in name for name in made)
    assert not any("formats" in name for name in made)
