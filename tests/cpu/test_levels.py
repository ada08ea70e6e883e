"""The tests of vector operations and of kernels, once more at every other level that this host has."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from graphml_cpu import target

_OF_KERNELS = "norm rope_cache elementwise attention quantize_fused reduce choose layout"
KERNELS = [f"kernels/test_{name}.py" for name in _OF_KERNELS.split()]
FILES = ["test_simd.py", "test_simd_math.py", "test_mul_mat.py", *KERNELS]
OTHERS = [name for name in target.available() if name != target.current().name]
Runs = dict[str, tuple["subprocess.Popen[str]", Path]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    """One process per level, all at once: most of the time one thread compiles."""
    files = [str(path) for name in FILES if (path := Path(__file__).parent / name).exists()]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *files]
    # What these processes cover, this one covers too; measuring it again takes as long as the tests.
    unmeasured = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
    started: Runs = {}
    for level in OTHERS:
        output = tmp_path_factory.mktemp("levels") / f"{level}.txt"
        with output.open("w") as to:
            process = subprocess.Popen(
                command, env={**unmeasured, "GRAPHML_CPU_LEVEL": level}, stdout=to, stderr=to, text=True
            )
        started[level] = process, output
    yield started
    for process, _ in started.values():
        process.kill()
        process.wait()


@pytest.mark.skipif("GRAPHML_CPU_LEVEL" in os.environ, reason="one level was asked for")
@pytest.mark.parametrize("level", OTHERS)
def test_the_same_at_level(level: str, runs: Runs) -> None:
    process, output = runs[level]
    assert process.wait() == 0, output.read_text()[-4000:]
