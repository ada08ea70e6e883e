"""Asks a program of `graphml.peers` for one thing, in a process of its own. Knows processes alone."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path

from graphml import peers
from graphml.errors import ArchitectureError, BackendError, UsageError

LONGEST_S = 3600.0


def ask(name: str, program: str, python: str, request: Mapping[str, object]) -> str:
    """Run a program with a Python; returns its description of itself.

    name: what errors call it. UsageError: it cannot be started; BackendError: it failed, or refused;
    ArchitectureError: it refused the model.
    """
    command = [python, str(Path(peers.__file__).with_name(program))]
    try:
        done = subprocess.run(
            command, input=json.dumps(request), capture_output=True, text=True, encoding="utf-8",
            timeout=LONGEST_S, check=False,
        )  # fmt: skip
    except OSError as error:
        raise UsageError(f"{name}: {command[0]} cannot be started: {error.strerror or error}") from None
    except subprocess.TimeoutExpired:
        raise BackendError(f"{name}: gave nothing within {LONGEST_S:.0f} s") from None
    try:
        answer = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise BackendError(f"{name}: its process ended with {done.returncode}: {last}") from None
    if "error" in answer:
        kind = ArchitectureError if answer.get("kind") == "ArchitectureError" else BackendError
        raise kind(f"{name}: {answer['error']}")
    return str(answer["by"])
