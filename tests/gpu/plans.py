"""The dispatches of whole models, as a device that runs none of them is handed them."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, cast

import numpy as np
from graphml_gpu.backend import make_backend
from graphml_gpu.device import GpuDevice
from graphml_gpu.driver import Bound, Facts, Groups
from graphml_gpu.plain_driver import FACTS, PlainDriver

from graphml.runtime.programs.executor import Executor
from graphml.runtime.programs.open_executor import read_architecture
from graphml.weights import open_model
from tests import golden
from tests.one_text import OneText

Dispatched = tuple[Bound, Groups]


class NothingRuns(PlainDriver):
    """Keeps what is submitted; what is read back is as it was."""

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self.dispatched: list[Dispatched] = []

    def submit(self, recording: Any, groups: Sequence[Groups], *others: Any, **more: Any) -> None:
        """See `Driver`."""
        bound = cast(Sequence[Bound], recording)
        self.dispatched += [one for one in zip(bound, groups, strict=True) if all(one[1])]


@cache
def dispatches(name: str, facts: Facts = FACTS) -> Sequence[Dispatched]:
    """Of a golden, whose weights do not matter: a prompt, then one token."""
    with tempfile.TemporaryDirectory() as folder:
        return _dispatches(name, Path(folder), facts)


def _dispatches(name: str, folder: Path, facts: Facts) -> Sequence[Dispatched]:
    one = golden.read(name)
    ones = {tensor: np.ones(sizes[::-1], np.float32) for tensor, sizes in one.tensors.items()}
    path = golden.write_gguf(folder / f"{name}.gguf", one.architecture, one.metadata, ones)
    driver = NothingRuns(facts)
    file = open_model(path)
    made = read_architecture(file)
    backend = make_backend("planned", lambda: driver, unavailable=lambda: None)
    executor = Executor(file, *made, backend, GpuDevice(driver), 32, cache_dtype="f32")
    text = OneText(executor)
    for tokens in (one.tokens, [1]):
        text.step(tokens, all_logits=False)
    executor.close()
    return driver.dispatched
