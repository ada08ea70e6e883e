"""Sides that measure nothing, and rows made of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import cycle
from typing import Any

from graphml.bench.describe import Environment
from graphml.bench.measure import Measured, Round
from graphml.bench.result_rows import Context, ResultRow, rows
from graphml.bench.side import Usage
from graphml.bench.test_plan import SideParameters, Test
from graphml.ir.work import Work

Test.__test__ = False  # type: ignore[attr-defined]  # it is no test of pytest
ENVIRONMENT = Environment("abc", 'A "fast", one | CPU\'s', 2, "", "Linux", "3.11", "2", "1", 0.5)
GENERATION = Test(0, 100)
MODEL = {"model_type": "llama 1.1B Q4_0", "model_size": 635_992_883, "model_n_params": 1_100_048_384}


class FakeSide:
    """Takes the given nanoseconds, over and over, and writes down what it was asked."""

    def __init__(self, name: str, log: list[str], ns: Sequence[int]) -> None:
        self.name, self.log, self._ns = name, log, cycle(ns)
        self.on_host = True
        self.steps: list[int] = []
        self.about: dict[str, Any] = {**MODEL, "engine_version": f"{name} 1", "level": "avx512"}

    def bandwidth(self) -> float:
        return 5e9

    def prepare(self, test: Test) -> Work:
        self.log.append(f"{self.name} prepares {test.name}")
        return Work(1000, 2000) if self.name == "cpu" else Work()

    def run(self) -> int:
        self.log.append(self.name)
        return next(self._ns)

    def bound(self, bandwidth: float, usual_s: float) -> dict[str, float]:
        return {"memory": 0.7, "compute": 0.2, "overhead": 0.1} if self.name == "cpu" else {}

    def usage(self) -> Usage:
        return Usage()

    def close(self) -> None:
        self.log.append(f"{self.name} ends")


def row(
    test: Test = GENERATION,
    ns: Sequence[int] = (10**9, 2 * 10**9, 10**9),
    peer: Sequence[int] = (),
    **setting: Any,
) -> ResultRow:
    """A row of given times; with a peer's times its ratio too."""
    return next(made_rows(test, ns, peer, **setting))


def made_rows(test: Test, ns: Sequence[int], peer: Sequence[int], **setting: Any) -> Iterator[ResultRow]:
    ours = Measured(
        FakeSide("cpu", [], ns),
        test,
        tuple(ns),
        Work(10**9, 10**10),
        {"memory": 0.9, "overhead": 0.1},
        bandwidth=2e9,
    )
    theirs = Measured(FakeSide("llama.cpp", [], peer or [1]), test, tuple(peer), ours.cost)
    sides = (ours, theirs) if peer else (ours,)
    shared = Context(
        SideParameters("graphml", "folder/model.gguf", "cpu", setting.pop("threads", 2), **setting),
        [side.side.about for side in sides],
        ENVIRONMENT,
        "2026-11-20T00:00:00Z",
        "00ff",
    )
    yield from rows(Round(test, sides), shared)
