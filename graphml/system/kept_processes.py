"""Kept processes that run a program on what others wrote: a hostile request ends its process, nothing else.

A process is started with the first request, and another one where all were busy for a while; each answers
one request after the other. What ends a process is the error of its request; a later request starts a new
one. Knows processes and the form of requests (`kept_program`); nothing of what they say.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from graphml import settings
from graphml.system.kept_program import HEAD, OUT_OF_MEMORY

SECONDS_BEFORE_ANOTHER = 0.02
CLOCK_FACTOR = 20
"""The limit by the clock in limits of processor time: other threads want the processors, too."""
HEAD_BYTES, LONGEST_PART = 5, 1 << 16


class EndedError(Exception):
    """Why a request has no answer. code: with which its process ended, negative for a signal.

    start: none could be started, for the reason in the text; length: the answer was too long; memory, time:
    it went over that limit; end: the process ended otherwise, or did not answer.
    """

    def __init__(
        self, why: Literal["start", "length", "memory", "time", "end"], code: int = 0, reason: str = ""
    ) -> None:
        super().__init__(reason)
        self.why, self.code = why, code


class KeptProcess:
    """A started process, used by one thread at a time."""

    def __init__(self, program: Path) -> None:
        command, environment = settings.confined_python_child(program)
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0,
                env=environment,
            )  # fmt: skip
        except (OSError, ValueError) as error:
            raise EndedError("start", reason=str(error)) from error
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin.fileno(), self._process.stdout.fileno()
        if sys.platform != "win32":
            self._ready = select.poll()  # `select.select` takes no descriptors above 1023
            self._ready.register(self._output, select.POLLIN)

    @property
    def ended(self) -> bool:
        """Whether it ended, for whatever reason."""
        return self._process.poll() is not None

    def answer(self, request: bytes, seconds: float, memory: int, most: int) -> tuple[int, str]:
        """The kind and text, of `most` bytes at most, of the answer within `seconds` of processor time.

        memory: bytes that the process may use. EndedError where the process ends or is ended.
        """
        patience = seconds * CLOCK_FACTOR
        with self._ended_after(patience) if sys.platform == "win32" else contextlib.nullcontext():
            try:
                self._write(HEAD.pack(len(request), seconds, memory) + request)
                until = time.monotonic() + patience
                answer = self._read(bytearray(), HEAD_BYTES, until)
                size = int.from_bytes(answer[1:HEAD_BYTES], "little")
                if size > most:
                    self._process.kill()
                    raise EndedError("length")
                text = self._read(answer, HEAD_BYTES + size, until)[HEAD_BYTES:]
                return answer[0], text.decode("utf-8", "surrogatepass")
            except (OSError, EOFError, UnicodeDecodeError):
                self._process.kill()
                raise _end(self._process.wait()) from None

    @contextlib.contextmanager
    def _ended_after(self, seconds: float) -> Any:
        """Within, the process is ended after this time: Windows has no wait for a pipe with a limit."""
        timer = threading.Timer(seconds, self._process.kill)
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _write(self, message: bytes) -> None:
        left = memoryview(message)
        while left:
            left = left[os.write(self._input, left) :]

    def _read(self, answer: bytearray, size: int, until: float) -> bytearray:
        """Add to what has come of an answer until it has this size."""
        while len(answer) < size:
            if sys.platform != "win32" and not self._ready.poll(max(0.0, 1e3 * (until - time.monotonic()))):
                raise EOFError
            part = os.read(self._output, LONGEST_PART)
            if not part:
                raise EOFError
            answer += part
        return answer

    def end(self) -> None:
        """End it, whatever it is doing."""
        self._process.kill()
        with contextlib.suppress(OSError), self._process:  # closes its pipes, and waits for it
            pass

    def forget(self) -> None:
        """Leave it to the program that started it."""
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        self._process.returncode = 0  # else Python warns that it still runs


def _end(code: int) -> EndedError:
    if code == OUT_OF_MEMORY:
        return EndedError("memory", code)
    if hasattr(signal, "SIGPROF") and code == -signal.SIGPROF:
        return EndedError("time", code)
    return EndedError("end", code)


_EVERY: weakref.WeakSet[KeptProcesses] = weakref.WeakSet()


class KeptProcesses:
    """At most `most` processes of a program, for any number of threads."""

    def __init__(self, program: Path, most: int) -> None:
        self._program, self._most = program, most
        self._begin()
        _EVERY.add(self)

    def forget(self) -> None:
        """Begin without processes, as after a fork: those there are belong to the other program."""
        for process in self._idle.queue:
            process.forget()
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._idle: queue.LifoQueue[KeptProcess] = queue.LifoQueue()
        self._n_processes = 0

    def prepare(self) -> None:
        """Start the first process, if there is none, without waiting for it."""
        with contextlib.suppress(EndedError):  # the first request says it
            if self._n_processes == 0 and (process := self._another()) is not None:
                self._idle.put(process)

    @contextlib.contextmanager
    def one_of_them(self) -> Iterator[KeptProcess]:
        """A process for the caller alone; with an error within it is ended. EndedError where none starts."""
        process = self._taken()
        try:
            yield process
        except BaseException:  # also where Ctrl-C leaves an answer unread
            self._drop(process)
            raise
        self._idle.put(process)

    def _taken(self) -> KeptProcess:
        """An idle process, started if need be."""
        while True:
            with contextlib.suppress(queue.Empty):
                process = self._idle.get(timeout=SECONDS_BEFORE_ANOTHER if self._n_processes else 0)
                if not process.ended:
                    return process
                self._drop(process)
            if (another := self._another()) is not None:
                return another

    def _another(self) -> KeptProcess | None:
        with self._lock:
            if self._n_processes == self._most:
                return None
            self._n_processes += 1
        try:
            return KeptProcess(self._program)
        except EndedError:
            with self._lock:
                self._n_processes -= 1
            raise

    def _drop(self, process: KeptProcess) -> None:
        process.end()
        with self._lock:
            self._n_processes -= 1

    def close(self) -> None:
        """End the idle processes; one that is busy ends with this program, whose end closes its input."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._drop(self._idle.get_nowait())


def _every(method: str) -> None:
    for processes in list(_EVERY):
        getattr(processes, method)()


atexit.register(_every, "close")
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: _every("forget"))
