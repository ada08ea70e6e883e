"""Kernels and dispatches given to Dawn, Chromium's WebGPU, as the npm package `webgpu` has it for Node.

Skips where there is no Node or no package; where CI runs, that fails.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Collection, Iterable
from functools import cache
from pathlib import Path
from typing import Any, cast

import pytest
from graphml_gpu.driver import Buffer, writable
from graphml_gpu.language import Specialised

from tests.gpu.plans import Dispatched

SCRIPT = Path(__file__).with_name("dawn.mjs")
HOW = "npm install --no-save --no-package-lock --ignore-scripts webgpu"


@cache
def node() -> str:
    """The command; the test is skipped, saying why, where it cannot load the package."""
    found = shutil.which("node")
    missing = "no node on the path" if found is None else None
    if found is not None:
        load = ["--input-type=module", "-e", "await import('webgpu'); process.exit(0)"]
        run = subprocess.run(
            [found, *load], cwd=SCRIPT.parent, capture_output=True, text=True, check=False, timeout=60
        )
        if run.returncode:
            said = next((line for line in run.stderr.splitlines() if "Error" in line), run.stderr.strip())
            missing = f"node cannot load the package webgpu: {said}"
    if missing is not None:
        reason = f"{missing}; Dawn reads WGSL with it: {HOW}"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)
    return cast(str, found)


def _kernel(kernel: Specialised, shared: Collection[str]) -> dict[str, Any]:
    """A text with its bindings, as they are bound; wgpu has no word for subgroups, Tint wants it."""
    written = [one.writes or one.name in shared for one in kernel.buffers]
    return {
        "name": kernel.name,
        "text": ("enable subgroups;\n" if kernel.subgroups else "") + kernel.wgsl(shared),
        "bindings": [*("storage" if one else "read-only-storage" for one in written), "uniform"],
    }


def complaints(kernels: Iterable[tuple[Specialised, Collection[str]]]) -> list[str]:
    """What Dawn finds wrong with kernels, each with those of its buffers that are bound as written too."""
    return _said([_kernel(*one) for one in kernels], [], [])


def complaints_of_dispatches(dispatched: Iterable[Dispatched]) -> list[str]:
    """What Dawn finds wrong with dispatches: their kernels, and what is bound."""
    numbers: dict[str, int] = {}
    buffers: dict[Buffer, int] = {}
    calls = []
    for bound, groups in dispatched:
        text = json.dumps(_kernel(bound.kernel, writable(bound)))
        ranges = [
            (buffers.setdefault(buffer, len(buffers)), offset, n_bytes)
            for buffer, offset, n_bytes in (*bound.buffers, bound.scalars)
        ]
        calls.append({"kernel": numbers.setdefault(text, len(numbers)), "ranges": ranges, "groups": groups})
    return _said([json.loads(text) for text in numbers], [buffer.n_bytes for buffer in buffers], calls)


def _said(kernels: list[Any], buffers: list[int], calls: list[Any]) -> list[str]:
    given = json.dumps({"kernels": kernels, "buffers": buffers, "dispatches": calls})
    run = subprocess.run(
        [node(), SCRIPT], input=given, capture_output=True, text=True, check=False, timeout=300
    )
    assert run.returncode == 0, run.stderr
    return cast(list[str], json.loads(run.stdout))
