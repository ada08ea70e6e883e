"""Libraries that a test needs: where one is missing it is skipped, and in continuous integration it fails."""

from __future__ import annotations

import asyncio
import atexit
import functools
import importlib
import importlib.util
import os
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

INSTRUCTOR = Path(__file__).parents[3] / ".venv" / "instructor" / "bin" / "python"
"""Of instructor's environment, which `.ci/run` makes: its requirements exclude the newest openai."""
LEAVES_SOCKETS = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
"""Libraries keep clients for later, and close none of them."""
LITELLMS_TYPES = pytest.mark.filterwarnings("ignore:Item '.*' on TypedDict class:UserWarning")
"""pydantic's warning of types of LiteLLM, which it makes when it first uses them."""


def library(name: str) -> Any:
    """The module; the test that asks for it imports it."""
    if importlib.util.find_spec(name.partition(".")[0]) is None:
        missing(f"{name} is not installed: pip install -e '.[clients]'")
    return importlib.import_module(name)


@functools.lru_cache(maxsize=1)
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    atexit.register(loop.close)
    return loop


def run(work: Coroutine[Any, Any, Any]) -> Any:
    """What a coroutine returns; all in one loop, as clients that a library keeps belong to the first."""
    return _loop().run_until_complete(work)


def missing(reason: str) -> None:
    (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)
