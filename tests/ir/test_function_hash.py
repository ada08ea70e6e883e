"""The hash of a function and of what it reaches: equal where all is equal, another where anything is not."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from graphml.ir.function_hash import reached

SOURCE = """
from functools import cache, partial
LIBRARY, TABLE = object(), [1, 2]
class Named:
    pass
@cache
def cached(x):
    return x + 1
def plain(x, *, more=1):
    return x + more
half = partial(plain, more=1)
def reads(x):
    return cached(x) + half(x) + plain(x) + TABLE[0] + (x in {"a", "b"})
"""


def hash_of(source: str, **more: Any) -> str:
    names: dict[str, Any] = {"__name__": "elsewhere", **more}
    exec(source, names)
    return reached(names["reads"]).hash


def test_equal_functions_have_one_hash() -> None:
    assert hash_of(SOURCE) == hash_of(SOURCE)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("x + 1", "x + 2"),
        ("*, more=1", "*, more=2"),
        ("plain, more=1", "plain, more=2"),
        ("[1, 2]", "[1, 3]"),
        ('"b"', '"c"'),
    ],
)
def test_what_is_reached_is_in_it(before: str, after: str) -> None:
    assert SOURCE.count(before) == 1
    assert hash_of(SOURCE) != hash_of(SOURCE.replace(before, after))


@pytest.mark.parametrize("third", ["one", "two"])
def test_what_is_met_again_is_told_apart(third: str) -> None:
    source = "def reads(x):\n    return first(x) + second(x) + third(x)\n"

    def one(x: int) -> int:
        return x

    def two(x: int) -> int:
        return -x

    other: dict[str, Callable[[int], int]] = {"one": two, "two": one}
    this = {"one": one, "two": two}
    assert hash_of(source, first=one, second=two, third=this[third]) != hash_of(
        source, first=one, second=two, third=other[third]
    )


def test_large_arrays_of_an_instance_count_whole() -> None:
    @dataclass
    class Table:
        values: Any

    def of(last: float) -> str:
        values = np.zeros(5000)
        values[2500] = last
        return hash_of("def reads(x):\n    return table.values\n", table=Table(values))

    assert of(1) != of(2)
    assert of(1) == of(1)


def test_addresses_are_not_in_it() -> None:
    class Plain:
        __slots__ = ()

    assert len({hash_of("def reads(x):\n    return thing\n", thing=Plain()) for _ in range(3)}) == 1


def test_covered_modules_count_by_name_and_what_they_made() -> None:
    def made(value: Any) -> Callable[[], Any]:
        def inner() -> Any:
            return value

        return inner

    covered = functools.partial(reached, is_covered=lambda module: module == __name__)
    assert covered(made(1)).hash != covered(made(2)).hash
    assert covered(made(1)).hash == covered(made(1)).hash
    assert covered(made(1)).functions == []
