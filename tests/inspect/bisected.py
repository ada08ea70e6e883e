"""Two sides of a model, opened and bisected, for tests."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from graphml.compiler.options import CompileOptions
from graphml.inspect.bisect import bisect as bisection
from graphml.inspect.bisect.bisect import Bisection, Finding, bisect
from graphml.inspect.bisect.judging import Judge
from graphml.inspect.compare.observe import observe
from graphml.inspect.compare.route import TOKENS, Leg, wide
from graphml.inspect.dumps.layers import layer_of
from graphml.runtime.programs.executor import Executor
from graphml.runtime.programs.load_options import LoadOptions
from graphml.runtime.programs.open_executor import open_executor
from graphml.weights import open_model
from tests import golden
from tests.inspect.samples import FOLDER
from tests.sample_models import kind_of
from tests.stories import STORIES

IDS = [1, 403, 407, 261, 378, 432, 383, 286]
NONE = CompileOptions(fuse="none")


@functools.cache
def stories() -> Path:
    """The first two layers of the stories checkpoint: what is wrong in five shows in them."""
    file = open_model(STORIES)
    metadata = {key: (kind_of(value), value) for key, value in file.metadata.items() if "token" not in key}
    kept = {name: tensor for name, tensor in file.tensors.items() if layer_of(name) in (None, 0, 1)}
    tensors = {name: tensor.data.view(np.float32).reshape(tensor.shape) for name, tensor in kept.items()}
    metadata["llama.block_count"] = "UINT32", 2
    return golden.write_gguf(Path(FOLDER.name) / "stories.gguf", "llama", metadata, tensors)


@dataclass(frozen=True)
class Opened:
    a: Executor
    b: Executor

    def bisect(self, options: CompileOptions = NONE, ids: list[int] = IDS, **judge: Any) -> Bisection:
        run, other = observe(self.a, ids), observe(self.b, ids, options)
        return bisect(run, other, Judge(self.b, options, **{"own": self.a.device, **judge}))

    def examine(
        self, tokens: int = TOKENS, options: CompileOptions = NONE, until: str | None = None
    ) -> Bisection:
        """As the command does, with a text of random ids; until: the last step that matters, of all."""
        ids = np.random.default_rng(0).integers(0, 48, tokens).tolist()

        def legs(executor: Executor, count: int) -> list[Leg]:
            every = wide(executor, count)
            names = [leg.name for leg in every]
            return every if until is None else every[: names.index(until) + 1]

        with mock.patch.object(bisection, "wide", legs):
            judge = Judge(self.b, options, own=self.a.device)
            return bisection.examine(self.a, ids, self.a.options, judge)[2]


@contextmanager
def opened(
    path: Path, a: str = "cpu", b: str = "reference", n_batch: int = 32, **settings: Any
) -> Iterator[Opened]:
    one, other = (open_executor(path, LoadOptions(name, 2, n_batch=n_batch, **settings)) for name in (a, b))
    try:
        yield Opened(one, other)
    finally:
        one.close()
        other.close()


def first(found: Bisection) -> Finding:
    assert found.first is not None
    return found.first


def without_products_of_gates(op: str) -> dict[str, str]:
    """Settings with which a gate is an op of its own."""
    return {"fuse": "-mul_mat_glu"} if op == "swiglu" else {}
