"""Two sides of a model, opened and bisected, for tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from graphml.engine.executor import Executor
from graphml.engine.loading import open_executor
from graphml.engine.options import CompileOptions
from graphml.inspect.bisect import Bisection, Finding, bisect
from graphml.inspect.judging import Judge
from graphml.inspect.observe import observe
from graphml.inspect.rounds import examine
from graphml.inspect.route import TOKENS

STORIES = Path(__file__).parents[1] / "data" / "llama2c" / "stories260K.bin"
IDS = [1, 403, 407, 261, 378, 432, 383, 286]
NONE = CompileOptions(fuse="none")


@dataclass(frozen=True)
class Opened:
    a: Executor
    b: Executor

    def bisect(self, options: CompileOptions = NONE, ids: list[int] = IDS, **judge: Any) -> Bisection:
        run, other = observe(self.a, ids), observe(self.b, ids, options)
        return bisect(run, other, Judge(self.b, options, **{"own": self.a.device, **judge}))

    def examine(self, tokens: int = TOKENS, options: CompileOptions = NONE) -> Bisection:
        """As the command does, with a text of random ids."""
        ids = np.random.default_rng(0).integers(0, 48, tokens).tolist()
        return examine(self.a, ids, self.a.options, Judge(self.b, options, own=self.a.device))[2]


@contextmanager
def opened(
    path: Path, a: str = "cpu", b: str = "reference", n_batch: int = 32, **settings: Any
) -> Iterator[Opened]:
    one, other = (open_executor(path, name, 2, n_batch=n_batch, **settings) for name in (a, b))
    try:
        yield Opened(one, other)
    finally:
        one.close()
        other.close()


def first(found: Bisection) -> Finding:
    assert found.first is not None
    return found.first


def without_products_of_gates(op: str) -> dict[str, CompileOptions]:
    """Settings with which a gate is an op of its own."""
    return {"options": CompileOptions("-mul_mat_glu")} if op == "swiglu" else {}
