"""Kept processes that render chat templates: a hostile template can end its process, and nothing else.

A process is started with the first template, and another one where all were busy for a while; each renders
one template after the other. What ends a process is the error of its request; a later request starts a new
one. Knows processes and the form of a request (`template_renderer`); knows nothing of messages.
"""

from __future__ import annotations

import atexit
import contextlib
import marshal
import os
import queue
import select
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphml import settings

MOST_PROCESSES = 4
SECONDS_BEFORE_ANOTHER = 0.02
CLOCK_FACTOR = 20
"""The limit by the clock in limits of processor time: other threads want the processors, too."""
FAILURE, OUT_OF_MEMORY = 1, 77  # as in `template_renderer`
HEAD_BYTES, LONGEST_PART = 5, 1 << 16
LONGEST_LINE = 10  # digits of a line's number


@dataclass(frozen=True)
class TemplateLimits:
    """Limits of one rendering: a fixed part, and a part for each byte of the conversation.

    seconds: processor time. memory: bytes of the whole process, of which Python takes about 30 MB; macOS and
    Windows do not enforce it: there the time alone bounds it. output: bytes of the text.
    """

    seconds: float = 1.0
    seconds_per_byte: float = 5e-6
    memory: int = 256 << 20
    memory_per_byte: int = 32
    output: int = 4 << 20
    output_per_byte: int = 4


class RenderingError(Exception):
    """Why a template has no text. line: of the template, 0 if that is not known. over: it met a limit."""

    def __init__(self, reason: str, line: int = 0, over: bool = False) -> None:
        super().__init__(reason)
        self.line, self.over = line, over


class _Process:
    """A started process, used by one thread at a time."""

    def __init__(self) -> None:
        command, environment = settings.confined_python_child(
            Path(__file__).with_name("template_renderer.py")
        )
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0,
                env=environment,
            )  # fmt: skip
        except (OSError, ValueError) as error:
            raise RenderingError(f"no process of Python can be started: {error}") from error
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

    def answer(self, request: bytes, seconds: float, most: int) -> tuple[int, str]:
        """The kind and text, of `most` bytes at most, of the answer within `seconds` of processor time.

        RenderingError where the process ends or is ended.
        """
        patience = seconds * CLOCK_FACTOR
        with self._ended_after(patience) if sys.platform == "win32" else contextlib.nullcontext():
            try:
                self._write(len(request).to_bytes(4, "little") + request)
                until = time.monotonic() + patience
                answer = self._read(bytearray(), HEAD_BYTES, until)
                size = int.from_bytes(answer[1:HEAD_BYTES], "little")
                if size > most:
                    self._process.kill()
                    raise RenderingError(f"the template writes more than {most:,} bytes", over=True)
                text = self._read(answer, HEAD_BYTES + size, until)[HEAD_BYTES:]
                return answer[0], text.decode("utf-8", "surrogatepass")
            except (OSError, EOFError, UnicodeDecodeError):
                self._process.kill()
                raise RenderingError(_why_it_ended(self._process.wait(), seconds), over=True) from None

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


def _why_it_ended(code: int, seconds: float) -> str:
    """code: of the process's exit, negative for a signal."""
    if code == OUT_OF_MEMORY:
        return "the template needs too much memory"
    if hasattr(signal, "SIGPROF") and code == -signal.SIGPROF:
        return f"the template takes longer than {seconds:.3g} s"
    return f"the process that renders it ended, or did not answer (exit code {code})"


class TemplateProcesses:
    """At most `MOST_PROCESSES` of them, for any number of threads."""

    def __init__(self) -> None:
        self._begin()

    def forget(self) -> None:
        """Begin without processes, as after a fork: those there are belong to the other program."""
        for process in self._idle.queue:
            process.forget()
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._idle: queue.LifoQueue[_Process] = queue.LifoQueue()
        self._n_processes = 0

    def prepare(self) -> None:
        """Start the first process, if there is none, without waiting for it."""
        with contextlib.suppress(RenderingError):  # the first template says it
            if self._n_processes == 0 and (process := self._another()) is not None:
                self._idle.put(process)

    def answer(self, source: str, variables: dict[str, Any] | None, now: str, limits: TemplateLimits) -> str:
        """The text that a template makes of the variables; of None the names that it reads, in lines.

        now: the time in ISO's form. RenderingError where the template fails, or goes over its limits.
        """
        data = b"" if variables is None else marshal.dumps(variables)
        seconds = limits.seconds + limits.seconds_per_byte * len(data)
        memory = limits.memory + limits.memory_per_byte * len(data)
        request = marshal.dumps((source, data, now, seconds, memory))
        process = self._taken()
        try:
            kind, text = process.answer(request, seconds, limits.output + limits.output_per_byte * len(data))
        except BaseException:  # also where Ctrl-C leaves an answer unread
            self._drop(process)
            raise
        self._idle.put(process)
        if kind == FAILURE:
            line, _, reason = text.partition(" ")
            raise RenderingError(reason, int(line) if line.isdecimal() and len(line) < LONGEST_LINE else 0)
        return text

    def _taken(self) -> _Process:
        """An idle process, started if need be."""
        while True:
            with contextlib.suppress(queue.Empty):
                process = self._idle.get(timeout=SECONDS_BEFORE_ANOTHER if self._n_processes else 0)
                if not process.ended:
                    return process
                self._drop(process)
            if (another := self._another()) is not None:
                return another

    def _another(self) -> _Process | None:
        with self._lock:
            if self._n_processes == MOST_PROCESSES:
                return None
            self._n_processes += 1
        try:
            return _Process()
        except RenderingError:
            with self._lock:
                self._n_processes -= 1
            raise

    def _drop(self, process: _Process) -> None:
        process.end()
        with self._lock:
            self._n_processes -= 1

    def close(self) -> None:
        """End the idle processes; one that is busy ends with this program, whose end closes its input."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._drop(self._idle.get_nowait())


PROCESSES = TemplateProcesses()
atexit.register(PROCESSES.close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=PROCESSES.forget)
