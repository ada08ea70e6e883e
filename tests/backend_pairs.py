"""Which backends a test of many models tries each of them on.

The GPU backends run the same kernels, whose texts a driver made of the processor compiles for a second or
more for each model. So a model meets one of them, in turn, and some meet both. Each op and each form of a
kernel meets each backend in the tests of kernels and in the conformance suite. Knows names alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from graphml.loading import discovery

BACKENDS = [name for name in discovery.backend_names() if discovery.backend(name).unavailable() is None]
GPUS = ("opencl", "wgpu")
PROCESSORS = [name for name in BACKENDS if name not in GPUS]
LISTED = Path(__file__).parent / "data" / "models_alike_on_gpus.txt"
ALIKE = frozenset(LISTED.read_text().split())
"""Goldens and records whose kinds of nodes and kernels on GPUs others have too, see `gpu_forms`."""


def in_turn(
    names: Sequence[str],
    backends: Sequence[str] = BACKENDS,
    everywhere: Collection[str] = (),
    spared: Collection[str] = (),
    first: int = 0,
) -> list[tuple[str, str]]:
    """(name, backend): all names on processors, one after the other on each GPU, those `everywhere` on all.

    Names that end alike (`-moe`, `-dense`) are shared out among the GPUs as well. spared: those that no GPU
    is tried with, unless everything is. first: of whose turn it is.
    """
    gpus = [backend for backend in backends if backend in GPUS]
    by_ending = sorted(set(names) - {*everywhere, *spared}, key=lambda name: name.split("-")[::-1])
    turn = dict.fromkeys(set(spared) - set(everywhere), "none")
    turn |= {name: gpus[i % len(gpus)] for i, name in enumerate(by_ending, first)} if gpus else {}
    return [
        (name, backend)
        for name in names
        for backend in backends
        if backend not in GPUS or turn.get(name, backend) == backend
    ]


def meeting_both(
    pairs: Sequence[tuple[str, str]], features: Mapping[str, Collection[str]]
) -> list[tuple[str, str]]:
    """The pairs, and a model more on a GPU for each feature of several models that it does not meet yet.

    features: of each model. That model is one that meets the other GPU.
    """
    found, gpus = list(pairs), [name for name in GPUS if name in BACKENDS]
    for feature in sorted({one for some in features.values() for one in some}):
        have = [name for name, some in features.items() if feature in some]
        for gpu in gpus if len(have) > 1 else ():
            if not any((name, gpu) in found for name in have):
                found.append((next((name for name, on in found if name in have and on in gpus), have[0]), gpu))
    return sorted(found)
