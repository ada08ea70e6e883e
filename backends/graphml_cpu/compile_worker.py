"""A process that compiles kernels for another one: `python -m graphml_cpu.compile_worker FOLDER`.

It writes `next` where it wants a kernel, gets it as a line of JSON, or an empty line where none is left, and
writes `done` once a kernel is in the folder. Whatever goes wrong ends it: who asked compiles the rest.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

from graphml_cpu import kernel_cache, kernel_compilation
from graphml_cpu.compile_workers import of_line
from graphml_cpu.kernel_cache import KernelRef


def _wanted() -> Iterator[KernelRef]:
    while True:
        print("next", flush=True)
        line = sys.stdin.readline().strip()
        if not line:
            return
        yield of_line(line)


def main() -> None:
    """Compile what is asked for."""
    folder = Path(sys.argv[1])
    if folder != kernel_cache.folder() or kernel_cache.usable_folder() is None:
        sys.exit(f"other sources, versions or level: {kernel_cache.folder()}")
    for _ in kernel_compilation.compiled_in_turn(_wanted(), folder):
        print("done", flush=True)
    os._exit(0)  # nothing is left to clean up


if __name__ == "__main__":
    main()
