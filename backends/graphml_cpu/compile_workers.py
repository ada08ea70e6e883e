"""Further processes that compile a part of the kernels: the front end is Python, so threads would take turns.

They leave kernels in the cache's folder, from where they are read. Where no process can be started, or one
fails, all that was given to it is compiled here. Knows names of kernels and processes, and nothing of LLVM.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from graphml import settings
from graphml_cpu import target
from graphml_cpu.kernel_cache import KernelRef
from graphml_cpu.processors import physical_cores

_MOST, _KERNELS_EACH = 4, 6
"""Processes, this one included; and kernels for which another one pays: it imports the front end first."""


def as_line(ref: KernelRef) -> str:
    """What names a kernel's function, as a process is told."""
    return json.dumps([ref.name, ref.module, ref.factory, ref.arguments])


def of_line(line: str) -> KernelRef:
    """The kernel of such a line; what it calls is not told, and not needed to compile it."""
    name, module, factory, arguments = json.loads(line)
    return KernelRef(name, module, factory, tuple(arguments))


class Workers:
    """Processes that take kernels from the end of `left`, from whose beginning the caller takes its own.

    done: what they have compiled so far. Those that they failed to compile are put back.
    """

    def __init__(self, left: deque[KernelRef], folder: Path, count: int) -> None:
        self._left, self.done = left, deque[KernelRef]()
        self._processes = [
            process for process in (_started(folder) for _ in range(count)) if process is not None
        ]
        self._threads = [
            threading.Thread(target=self._serve, args=(process,), name="graphml-compile-worker", daemon=True)
            for process in self._processes
        ]
        for thread in self._threads:
            thread.start()

    def _serve(self, process: subprocess.Popen[str]) -> None:
        sent: deque[KernelRef] = deque()
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            for line in process.stdout:
                if line == "next\n":
                    with contextlib.suppress(IndexError):
                        sent.append(self._left.pop())
                        process.stdin.write(as_line(sent[-1]))
                    process.stdin.write("\n")
                    process.stdin.flush()
                else:
                    self.done.append(sent.popleft())
        except (OSError, ValueError, IndexError):
            pass  # it ended, was ended, or has done what it was not given
        finally:
            self._left.extend(sent)

    def wait(self) -> None:
        """Until each has ended: `left` holds what they did not do."""
        for thread in self._threads:
            thread.join()

    def end(self) -> None:
        """End them, whatever they are doing."""
        for process in self._processes:
            process.kill()
        self.wait()
        for process in self._processes:
            with contextlib.suppress(OSError), process:  # closes its pipes
                pass


@contextlib.contextmanager
def workers_for(left: deque[KernelRef], folder: Path | None) -> Iterator[Workers]:
    """Within, as many processes as pay take a part of the kernels."""
    workers = Workers(left, folder or Path(), _count(len(left)) if folder else 0)
    try:
        yield workers
    finally:
        workers.end()


def _count(n_kernels: int) -> int:
    """How many further processes pay: none where Python cannot be started by its name, or for one core."""
    if getattr(sys, "frozen", False) or not Path(sys.executable or "").stem.startswith("python"):
        return 0
    if target.is_foreign():
        return 0
    most = settings.compile_processes() or min(_MOST, physical_cores())
    return max(0, min(most - 1, n_kernels // _KERNELS_EACH))


def _started(folder: Path) -> subprocess.Popen[str] | None:
    command, environment = settings.python_child(
        "-m", "graphml_cpu.compile_worker", str(folder), GRAPHML_COMPILE_PROCESSES="1"
    )
    with contextlib.suppress(OSError):
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True, env=environment,
        )  # fmt: skip
    return None
