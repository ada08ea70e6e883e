"""One side of a comparison: a process of its own that opens a model once and works on command.

Sides do not share a process because their threads would: llama.cpp's OpenMP threads spin for a while after
each step, and so, more briefly, do ours; in one process either would be timed with the other's threads,
libraries and allocator around it. A side without a command sleeps in a read; `measure` waits before
each run until the other's threads are asleep too. Knows processes and JSON lines; nothing of models.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np

from graphml import errors, peers, settings
from graphml.bench.logit_check import Logits
from graphml.bench.test_plan import LLAMA_CPP, OPENVINO, SideParameters, Test
from graphml.errors import BackendError, UsageError
from graphml.ir.work import Work

END_S = 20.0
PEERS = {LLAMA_CPP: "measure_llama_cpp.py", OPENVINO: "measure_openvino.py"}
"""Program of each peer, in the folder of `graphml.peers`."""


@dataclasses.dataclass(frozen=True)
class Usage:
    """What a side's process has used so far; 0: not known.

    resident, peak: bytes in RAM now, and at most. device: bytes of the device's memory now. cpu_s: processor
    seconds. compile_s: seconds of making programs.
    """

    resident: int = 0
    peak: int = 0
    device: int = 0
    cpu_s: float = 0.0
    compile_s: float = 0.0


class MeasuredSide(Protocol):
    """The interface of a side for `measure`. steps: nanoseconds of each decode step of the latest run."""

    name: str
    about: dict[str, Any]
    steps: list[int]

    @property
    def on_host(self) -> bool:
        """Whether it runs on the host's processor and memory."""

    def bandwidth(self) -> float:
        """The present bandwidth of the device's own memory, in bytes per second; 0: the host or not known."""

    def prepare(self, test: Test) -> Work:
        """Prepare a test, with its depth filled; return its cost, no work if that is not known."""

    def run(self) -> int:
        """Run it once; returns nanoseconds."""

    def bound(self, bandwidth: float, usual_s: float) -> dict[str, float]:
        """Shares of memory, compute and overhead in its time; empty if not known.

        bandwidth: bytes per second of memory. usual_s: seconds that a run usually takes.
        """

    def usage(self) -> Usage:
        """What it has used so far."""

    def close(self) -> None:
        """End it."""


class ProcessSide:
    """A side in a process of its own. about: its description of itself and the model."""

    def __init__(self, setting: SideParameters, python: str = sys.executable) -> None:
        self.setting = setting
        self.steps: list[int] = []
        self.name = setting.backend if setting.engine == "graphml" else setting.engine
        command, environment = _command(setting, python)
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - until the end
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True,
                encoding="utf-8", env=environment,
            )  # fmt: skip
        except OSError as error:
            self._errors.close()
            reason = error.strerror or error
            raise UsageError(f"{self.name}: {command[0]} cannot be started: {reason}") from None
        try:
            self.about = self._ask(dataclasses.asdict(setting), "engine_version")
        except BaseException:
            self.close()
            raise

    @property
    def on_host(self) -> bool:
        """See `MeasuredSide`."""
        return self.about.get("device") is None

    def bandwidth(self) -> float:
        """See `MeasuredSide`."""
        return float(self._ask({"do": "bandwidth"}, "bandwidth")["bandwidth"])

    def prepare(self, test: Test) -> Work:
        """See `MeasuredSide`."""
        return Work(**self._ask({"do": "prepare", "test": dataclasses.asdict(test)}))

    def run(self) -> int:
        """See `MeasuredSide`."""
        reply = self._ask({"do": "run"}, "ns")
        self.steps = [int(step) for step in reply.get("steps", ())]
        return int(reply["ns"])

    def bound(self, bandwidth: float, usual_s: float) -> dict[str, float]:
        """See `MeasuredSide`."""
        reply = self._ask({"do": "bound", "bandwidth": bandwidth, "usual_s": usual_s})
        return {name: float(part) for name, part in reply.items()}

    def usage(self) -> Usage:
        """See `MeasuredSide`."""
        return Usage(**self._ask({"do": "usage"}, "resident"))

    def logits(self, ids: Sequence[int], n_prompt: int) -> Logits:
        """Of a prompt of the first ids and of each further one: float32 [1 + others, n_vocab]."""
        reply = self._ask({"do": "logits", "ids": list(ids), "n_prompt": n_prompt}, "logits")
        rows = np.frombuffer(base64.b64decode(reply["logits"]), "<f4")
        return rows.reshape(1 + len(ids) - n_prompt, -1)

    def close(self) -> None:
        """See `MeasuredSide`. A process that does not end by itself is killed."""
        process = self._process
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):  # data that could not be written to a process that ended
                    stream.close()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._errors.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._process.kill()
        self.close()

    def _ask(self, command: dict[str, Any], wanted: str | None = None) -> dict[str, Any]:
        """Send a command; returns the answer with the `wanted` field, or raises the error that it reports."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # its output before it ended is read nevertheless
            process.stdin.write(json.dumps(command) + "\n")
            process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            raise BackendError(f"{self.name}: its process ended with {process.wait()}: {self._last_words()}")
        answer: Any = None
        with contextlib.suppress(ValueError, RecursionError):
            answer = json.loads(line)
        if isinstance(answer, dict) and "error" in answer:
            kind = getattr(errors, answer["kind"], BackendError)
            raise kind(f"{self.name}: {answer['error']}")
        if not isinstance(answer, dict) or (wanted is not None and wanted not in answer):
            raise BackendError(f"{self.name}: its process said what is no answer: {line.strip()[:80]!r}")
        return answer

    def _last_words(self) -> str:
        self._errors.seek(0)
        lines = self._errors.read().decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"


def _command(setting: SideParameters, python: str) -> tuple[list[str], dict[str, str] | None]:
    """The command of a side's process, and its environment; None: this one's."""
    if setting.engine == "graphml":
        return settings.python_child("-m", "graphml.bench.worker")
    if setting.engine not in PEERS:
        raise UsageError(f"--peer: wanted one of {', '.join(PEERS)}; got {setting.engine!r}")
    return [python, str(Path(peers.__file__).with_name(PEERS[setting.engine]))], None
