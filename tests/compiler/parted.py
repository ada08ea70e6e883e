"""Goldens as models on several backends, for tests."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import numpy as np

from graphml.ir.graph import Graph
from graphml.passes.placement_rules import layer_of
from graphml.runtime.programs.executor import Executor
from graphml.runtime.programs.load_options import LoadOptions
from graphml.runtime.programs.open_executor import open_executor
from tests import golden
from tests.golden import Floats
from tests.one_text import OneText

LIMIT = 1e-6
BOTH = "cpu,reference"
LAYERS = "cpu:layers.0,reference:layers.1"
# Ops of samples and goldens that the CPU has no kernel for (docs/cpu.md).
NO_KERNEL = {
    "compress_rows", "compressed_attention", "neighbours", "select_blocks", "select_compressed",
    "selected_attention", "text_means",
}  # fmt: skip


@cache
def built(name: str, folder: Path, form: str | None = None) -> Path:
    one = golden.read(name)
    if form is None:
        return golden.file(name)
    tensors = {tensor: golden.weights(tensor, sizes, one.seed) for tensor, sizes in one.tensors.items()}
    return golden.write_gguf(folder / f"{name}-{form}.gguf", one.architecture, one.metadata, tensors, form)


@contextlib.contextmanager
def opened(
    path: Path, backend: str = BOTH, place: str = "", strict: bool = False, fuse: str = ""
) -> Iterator[Executor]:
    options = LoadOptions(backend, 2, kv="f32", n_batch=32, fuse=fuse, place=place, strict=strict)
    executor = open_executor(path, options)
    with contextlib.closing(executor):
        yield executor


def evaluate(executor: Executor, pieces: list[list[int]]) -> Floats:
    text = OneText(executor)
    steps = [text.step(piece) for piece in pieces]
    return np.concatenate(steps)


def without_kernel(graph: Graph, places: Sequence[str]) -> set[str]:
    """Ops of the layers on the CPU, of these places of the layers, that it has no kernel for."""
    on_cpu = [node for node in graph.nodes if places[layer_of(node) or 0] == "cpu"]
    return {node.op.name for node in on_cpu} & NO_KERNEL


def refused_ops(text: str) -> set[str]:
    """The ops that reasons of refusals name, of which none says anything else."""
    found = [re.search(r"no kernel for (\w+)$", reason) for reason in text.split("; ")]
    assert all(found), text
    return {match[1] for match in found if match}
