"""OpenCL on the system's driver, where the other tests run on the one that `OCL_ICD_VENDORS` names.

Another compiler and other features: PoCL 3 has neither subgroups nor half precision nor products of bytes.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent
FILES = [
    "gpu/test_drivers.py", "gpu/test_subgroups.py", "gpu/test_products_on_devices.py",
    "gpu/language/test_language_examples.py", "test_goldens.py",
]  # fmt: skip
CASES = "(opencl or cannot_compile) and (not goldens or (in_one_batch and (llama-dense or gemma2)))"


@pytest.mark.skipif("OCL_ICD_VENDORS" not in os.environ, reason="the other tests run on it")
def test_the_same_on_the_systems_driver() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider", "-k", CASES]
    hidden = ("OCL_ICD_VENDORS", "COV")
    done = subprocess.run(
        [*command, *FILES], cwd=TESTS,
        env={name: value for name, value in os.environ.items() if not name.startswith(hidden)},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    if " passed" not in done.stdout:
        pytest.skip("the system has no OpenCL driver")
