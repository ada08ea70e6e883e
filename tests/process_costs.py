"""What a process of the test run would do again and again, done once: byte code, garbage collection.

Knows Python alone.
"""

from __future__ import annotations

import atexit
import gc
import os
import shutil
import sys
import tempfile

# Objects made before the youngest are looked at: Python's 700 are few where a graph has thousands of nodes.
YOUNG, MIDDLE, OLD = 20_000, 20, 20


def keep_byte_code_for_the_run() -> None:
    """Where Python may write no byte code, write it to a folder that is removed when the run ends.

    Else each process of the run compiles the same sources and has pytest rewrite the same tests: 8 s for one
    that collects all tests, 0.4 s for each command that is started.
    """
    if not sys.dont_write_bytecode:
        return
    sys.dont_write_bytecode = False
    sys.pycache_prefix = tempfile.mkdtemp(prefix="graphml-byte-code-")
    atexit.register(shutil.rmtree, sys.pycache_prefix, ignore_errors=True)
    del os.environ["PYTHONDONTWRITEBYTECODE"]  # of the processes of this run
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix


def collect_no_garbage() -> None:
    """Until `collect_seldom`: what is made while tests are collected is kept."""
    gc.disable()


def collect_seldom() -> None:
    """Look no more at what is there now, and not as often as Python does at what comes."""
    gc.freeze()
    gc.set_threshold(YOUNG, MIDDLE, OLD)
    gc.enable()
