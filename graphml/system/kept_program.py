"""The loop of a kept process: requests on its input, answers on its output, each within limits.

Before the first request the process gives up what none needs: files, sockets and further processes. A request
that needs more processor time or memory than its limits ends the process. Knows the form of requests and
answers; nothing of what they say, and nothing else of graphml.

A request is HEAD (its length, the seconds, the bytes of memory) and what the program reads. An answer is a
kind (1 byte), its length (4 bytes, little-endian) and UTF-8.
"""

from __future__ import annotations

import contextlib
import os
import signal
import struct
import sys
from collections.abc import Callable

try:
    import resource
except ImportError:
    resource = None  # type: ignore[assignment]

Answer = Callable[[bytes], tuple[int, bytes]]
HEAD = struct.Struct("<Idq")
TEXT, FAILURE = 0, 1
"""Kinds of answers that every program has."""
OUT_OF_MEMORY = 77  # the process's exit code
STACK_BYTES = 4 << 20
"""Half of what threads have on most systems: what fits here cannot overflow the stack of who asks."""


def confine() -> None:
    """Give up what no request needs; Windows has no such limits."""
    if resource is None:
        return
    standard_streams = 3
    for name, most in (("NOFILE", standard_streams), ("FSIZE", 0), ("NPROC", 0), ("CORE", 0)):
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (most, most))
    _limit("RLIMIT_STACK", STACK_BYTES)


def _limit(name: str, size: int) -> None:
    """Lower a limit of the process; macOS refuses some, and Windows has none."""
    if resource is not None:
        with contextlib.suppress(ValueError, OSError):
            hard = resource.getrlimit(getattr(resource, name))[1]
            resource.setrlimit(getattr(resource, name), (size if hard < 0 else min(size, hard), hard))


def _limit_seconds(seconds: float) -> None:
    """The process ends after this much processor time of its own; 0: never."""
    if hasattr(signal, "setitimer"):  # not on Windows, where the caller ends it by the clock
        signal.setitimer(signal.ITIMER_PROF, seconds)


def answer_requests(answer: Answer, size: Callable[[], int] = lambda: 0) -> None:
    """Answer requests until the input ends.

    answer: from a request's bytes to the kind and text of its answer. size: bytes of the process that do not
    count for the memory of a request.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that asks
    confine()
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    while head := requests.read(HEAD.size):
        length, seconds, memory = HEAD.unpack(head)
        request = requests.read(length)
        _limit("RLIMIT_AS", size() + memory)
        _limit_seconds(seconds)
        try:
            kind, text = answer(request)
        except MemoryError:
            os._exit(OUT_OF_MEMORY)
        _limit_seconds(0)
        answers.write(bytes([kind]) + len(text).to_bytes(4, "little") + text)
        answers.flush()
