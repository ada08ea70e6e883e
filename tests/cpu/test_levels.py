"""The tests of vector operations and of kernels, once more at every other level that this host has."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from graphml_cpu import target

_OF_KERNELS = "norm rope_cache elementwise attention quantize_fused reduce choose layout"
KERNELS = [f"kernels/test_{name}.py" for name in _OF_KERNELS.split()]
FILES = ["test_simd.py", "test_simd_math.py", "test_mul_mat.py", *KERNELS]
OTHERS = [name for name in target.available() if name != target.current().name]


@pytest.mark.skipif("GRAPHML_CPU_LEVEL" in os.environ, reason="one level was asked for")
@pytest.mark.parametrize("level", OTHERS)
def test_the_same_at_level(level: str) -> None:
    files = [str(path) for name in FILES if (path := Path(__file__).parent / name).exists()]
    found = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *files],
        env={**os.environ, "GRAPHML_CPU_LEVEL": level},
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stdout[-4000:]
