"""Instructor: each mode over each protocol, parts of objects, lists, and what it asks for again."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.server.clients.libraries import INSTRUCTOR, missing
from tests.server.clients.refusing_server import Refusing
from tests.server.clients.wished_answers import Wishes
from tests.server.running_server import Running

PROGRAM = Path(__file__).parent / "instructor_ways.py"


def ways(address: str, *more: str) -> dict[str, Any]:
    if not INSTRUCTOR.exists():
        missing(f"instructor is not installed: {INSTRUCTOR} is made by .ci/run")
    done = subprocess.run([INSTRUCTOR, PROGRAM, address, *more], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def wish_of(prompt: str) -> str:
    """What stands between marks in the message: of several the first, and the last when asked again."""
    texts = re.findall(r"\[\[(.*?)\]\]", prompt, re.DOTALL)
    return str(texts[-1] if "at least a day is wanted" in prompt else texts[0])


def test_each_mode(wished: Wishes, refused: Refusing, subtests: pytest.Subtests) -> None:
    wished.say(wish_of)
    refused.statuses = [503, 429]  # of the first way: openai's client tries again
    found = ways(refused.address)
    assert len(found) > 17
    assert not refused.statuses
    for name, result in found.items():
        with subtests.test(name):
            assert result is True, result


@pytest.mark.model
def test_a_model_fills_a_nested_type(smollm: Running, subtests: pytest.Subtests) -> None:
    found = ways(smollm.address, "--real")
    assert len(found) == 4
    for name, result in found.items():
        with subtests.test(name):
            assert result is True, result
