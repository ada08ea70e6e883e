"""Which backends a test of many models tries each of them on.

The GPU backends run the same kernels, whose texts a driver made of the processor compiles for a second or
more for each model. So a model meets one of them, in turn, and some meet both; of the many goldens and
records those meet one that give it other work than the rest, see `gpu_forms`. Each op and each form of a
kernel meets each backend in the tests of kernels and in the conformance suite. Knows names alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from graphml.loading import discovery

BACKENDS = [name for name in discovery.backend_names() if discovery.backend(name).unavailable() is None]
GPUS = ("opencl", "wgpu")
TURNS = ("opencl", "wgpu", "opencl")
"""Whose turn comes after whose: the driver of wgpu compiles for several times as long."""
PROCESSORS = [name for name in BACKENDS if name not in GPUS]
LISTED = Path(__file__).parent / "data" / "models_on_gpus.txt"


def listed() -> Mapping[str, tuple[str, ...]]:
    """Goldens and records -> the GPUs that they give other work than the rest do; `gpu_forms` writes it."""
    lines = map(str.split, LISTED.read_text().splitlines())
    return {name: tuple(gpus) for name, *gpus in lines}


def by_forms(names: Sequence[str]) -> list[tuple[str, str]]:
    """(name, backend): all goldens or records on processors, on GPUs those listed and those that are new."""
    gpus, on = {backend for backend in BACKENDS if backend in GPUS}, listed()
    met = {name: set(on.get(name, GPUS)) for name in names}
    # Where the GPU that is listed is not there, another takes its place.
    met |= {name: gpus for name, some in met.items() if some and not some & gpus}
    return [(name, b) for name in names for b in BACKENDS if b not in GPUS or b in met[name]]


def in_turn(
    names: Sequence[str], backends: Sequence[str] = BACKENDS, everywhere: Sequence[str] = (), first: int = 0
) -> list[tuple[str, str]]:
    """(name, backend): all names on processors, one after the other on a GPU, those `everywhere` on all.

    `TURNS` says on which. Names that end alike (`-moe`, `-dense`) are shared out among the GPUs as well.
    first: of whose turn it is.
    """
    gpus = [backend for backend in TURNS if backend in backends]
    by_ending = sorted(set(names) - set(everywhere), key=lambda name: name.split("-")[::-1])
    turn = {name: gpus[i % len(gpus)] for i, name in enumerate(by_ending, first)} if gpus else {}
    return [
        (name, backend)
        for name in names
        for backend in backends
        if backend not in GPUS or turn.get(name, backend) == backend
    ]
