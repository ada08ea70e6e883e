"""OpenCL on the system's driver, where the other tests run on the one that `OCL_ICD_VENDORS` names.

Another compiler and other features: PoCL 3 has neither subgroups nor half precision nor products of bytes.
"""

import os
from pathlib import Path

import pytest

from tests.another_run import run_again

TESTS = Path(__file__).parent.parent
FILES = [
    "gpu/test_drivers.py", "gpu/test_subgroups.py", "gpu/test_products_on_devices.py",
    "gpu/language/test_language_examples.py", "test_goldens.py",
]  # fmt: skip
CASES = "(opencl or cannot_compile) and (not goldens or (in_one_batch and (llama-dense or gemma2)))"


@pytest.mark.skipif("OCL_ICD_VENDORS" not in os.environ, reason="the other tests run on it")
def test_the_same_on_the_systems_driver() -> None:
    if " passed" not in run_again(["-k", CASES, *FILES], TESTS, hidden=["OCL_ICD_VENDORS"]):
        pytest.skip("the system has no OpenCL driver")
