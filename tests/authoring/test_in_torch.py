"""The tests that import torch, and the page of it, by a Python that has it, which `TORCH_PYTHON` names."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.authoring.test_import_command import PYTHON, with_torch

ROOT = Path(__file__).parents[2]
RUNS = {
    "ops": ["tests/torch_module/test_ops_in_torch.py"],
    "models": ["tests/torch_module/test_model_module.py", "tests/torch_module/test_graph_module.py"],
    "finetuning": ["tests/finetuning"],
    "sensitivity": ["tests/torch_module/test_sensitivity.py"],
    "lm_eval": ["tests/workshop/test_lm_eval.py"],
    "page": ["tests/docs/test_docs.py", "-k", "examples and (torch or finetuning)"],
}


@with_torch
@pytest.mark.parametrize("name", RUNS)
def test_what_imports_torch_passes(name: str) -> None:
    # Of the other run's plugins and options none.
    command = [PYTHON, "-m", "pytest", "-q", "-o", "addopts=", "-p", "no:cacheprovider", *RUNS[name]]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=ROOT,
        env={**os.environ, "PYTEST_ADDOPTS": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert "passed" in done.stdout
    assert "skipped" not in done.stdout


def test_without_torch_the_module_says_what_to_install() -> None:
    hidden = "import sys; sys.modules['torch'] = None\nimport graphml\n"
    call = "graphml.to_torch(graphml.load('stories260k', 'reference'))"
    done = subprocess.run([sys.executable, "-c", hidden + call], capture_output=True, text=True, check=False)
    assert "UsageError: to_torch: torch is missing; pip install '.[authoring]'" in done.stderr
