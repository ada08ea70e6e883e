"""Tests in a process of their own, where it must begin with another environment."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path


def run_again(
    tests: Sequence[str], folder: Path, hidden: Collection[str] = (), more: Mapping[str, str] | None = None
) -> str:
    """What pytest prints of tests that must pass. hidden, more: variables that are left out and added."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider", *tests]
    # What such a process covers, this one covers too; measuring it again takes as long as the tests.
    kept = {
        name: value for name, value in os.environ.items() if name not in hidden and not name.startswith("COV")
    }
    done = subprocess.run(
        command, cwd=folder, env={**kept, **(more or {})}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return done.stdout
