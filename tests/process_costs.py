"""What a process of the test run would do again and again, done once: byte code, garbage collection.

Knows Python and pytest alone.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import runpy
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import IO

import pytest

# Objects made before the youngest are looked at: Python's 700 are few where a graph has thousands of nodes.
YOUNG, MIDDLE, OLD = 20_000, 20, 20
BYTE_CODE = "graphml-byte-code-"  # a folder's name begins so
INSTALLED = Path(__file__).with_name("byte_code")
"""Python that starts with this folder in `PYTHONPATH` reads the byte code of installed packages."""


def keep_byte_code_for_the_run() -> None:
    """Where Python may write no byte code, write it to a folder that is removed when the run ends.

    Else each process of the run compiles the same sources and has pytest rewrite the same tests: 8 s for one
    that collects all tests, 0.4 s for each command that is started.
    """
    if not sys.dont_write_bytecode:
        return
    sys.dont_write_bytecode = False
    sys.pycache_prefix = tempfile.mkdtemp(prefix=BYTE_CODE)
    atexit.register(shutil.rmtree, sys.pycache_prefix, ignore_errors=True)
    del os.environ["PYTHONDONTWRITEBYTECODE"]  # of the processes of this run
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(INSTALLED), *([before] if before else [])])
    runpy.run_path(str(INSTALLED / "sitecustomize.py"))


_first: IO[bytes] | None = None  # the lock that the first process to collect tests holds
_second: IO[bytes] | None = None  # that of the process that helps it


def wait_for_byte_code() -> None:
    """In a run that keeps byte code of its own: the first process to come compiles it, the others wait.

    Compiling what all tests import takes 13 s, and processes that begin together would all do it. One of
    the others waits until the first begins with the tests, and then helps: see `help_with_byte_code`.
    """
    global _first, _second
    folder = Path(os.environ.get("PYTHONPYCACHEPREFIX", ""))
    if "PYTEST_XDIST_WORKER" not in os.environ or not folder.name.startswith(BYTE_CODE):
        return
    with suppress(ImportError):  # elsewhere than on Unix each compiles
        import fcntl

        _first = _locked(folder / "collecting")
        if _first is None and (_second := _locked(folder / "helping")) is not None:
            while _is_locked(folder / "collecting") and not (folder / "begun").exists():
                time.sleep(0.05)
        elif _first is None:
            with (folder / "collecting").open("wb") as file:
                fcntl.flock(file, fcntl.LOCK_SH)


def help_with_byte_code(tests: Iterable[Path]) -> None:
    """The second process compiles the last tests first, until it meets one that the first has compiled.

    tests: the folders that are collected. The first process says that it has begun.
    """
    folder = Path(os.environ.get("PYTHONPYCACHEPREFIX", ""))
    if _first is not None:
        (folder / "begun").touch()
    if _second is None:
        return
    for path in sorted((path for folder in tests for path in folder.rglob("test_*.py")), reverse=True):
        if any(Path(f"{folder}{path.parent}").glob(f"{path.stem}.*pyc")):
            break
        if sys.path[0] != str(path.parent):  # as pytest does
            sys.path.insert(0, str(path.parent))
        with suppress(Exception, pytest.skip.Exception):  # pytest meets it again, and reports it
            importlib.import_module(path.stem)
    import fcntl

    with _second, (folder / "collecting").open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)


def _locked(path: Path) -> IO[bytes] | None:
    """The file, if no other process holds it."""
    import fcntl

    file = path.open("wb")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file


def _is_locked(path: Path) -> bool:
    file = _locked(path)
    if file is not None:
        file.close()
    return file is None


def byte_code_is_there() -> None:
    """What the tests import is compiled: the other processes go on."""
    global _first
    if _first is not None:
        _first.close()
        _first = None


def collect_no_garbage() -> None:
    """Until `collect_seldom`: what is made while tests are collected is kept."""
    gc.disable()


def collect_once_more() -> None:
    """For the last time: pytest reports objects that nobody closed. Python would do it again as it ends."""
    gc.collect()
    gc.freeze()
    gc.disable()


def collect_seldom() -> None:
    """Look no more at what is there now, and not as often as Python does at what comes."""
    gc.freeze()
    gc.set_threshold(YOUNG, MIDDLE, OLD)
    gc.enable()
