"""The tests of vector operations and of kernels, once more at every other level that this host has.

Functions of vectors are tested there one by one, so of kernels that only loop over these some are enough:
norms, softmax, gates.
"""

import os
from pathlib import Path

import pytest
from graphml_cpu import target

from tests.another_run import run_again

_OF_KERNELS = "norm rope_cache attention shared_prefix quantize_fused reduce top_k layout format_encoders"
KERNELS = [f"kernels/test_{name}.py" for name in _OF_KERNELS.split()]
PRODUCTS = [f"test_{name}.py" for name in ("mul_mat", "mul_mat_id", "mul_mat_panels", "format_kernels")]
FILES = ["test_simd.py", "test_simd_math.py", *PRODUCTS, *KERNELS]
# For processors that nobody knows: kernels whose lanes meet, and those with most arithmetic. Products of
# experts are made of the parts of others.
_NOT_PLAIN = ("rope_cache", "layout", "mul_mat_id")
PLAIN = [name for name in FILES if not any(one in name for one in _NOT_PLAIN)]
# This one differs from AVX2 in the dot product of bytes alone.
OF_BYTES = ["test_simd.py", "test_mul_mat.py", "-k", "dot_products_are or levels_use or q4_0 or q6_k or q8_0"]
OTHERS = [name for name in target.available() if name != target.current().name]


@pytest.mark.skipif("GRAPHML_CPU_LEVEL" in os.environ, reason="one level was asked for")
@pytest.mark.parametrize("level", OTHERS)
def test_the_same_at_level(level: str) -> None:
    files = {"avx2-vnni": OF_BYTES, "plain": PLAIN}.get(level, FILES)
    run_again(files, Path(__file__).parent, more={"GRAPHML_CPU_LEVEL": level})
