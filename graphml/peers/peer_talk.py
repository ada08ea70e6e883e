"""The protocol of peer programs: a line of JSON on stdin is answered by one on stdout.

The programs beside it import it by its bare name, in a Python that need not have graphml: it uses only the
standard library.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


class RefusedError(Exception):
    """A request cannot be fulfilled. kind: the name of graphml's error that is raised at the other end."""

    def __init__(self, text: str, kind: str = "UsageError") -> None:
        super().__init__(text)
        self.kind = kind


def serve(answer: Callable[[Any], dict[str, Any]]) -> None:
    """Answer each line until stdin ends. All other output to stdout is redirected to stderr."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        try:
            reply = answer(json.loads(line))
        except RefusedError as error:
            reply = {"error": str(error), "kind": error.kind}
        answers.write(json.dumps(reply) + "\n")
        answers.flush()


def serve_measuring(open_peer: Callable[[dict[str, Any]], Any]) -> None:
    """Serve a peer that measures: the first line is a setting, each further line a command.

    open_peer: makes of a setting an object with `describe`, `prepare`, `run` and `logits`, whose answers
    `bench.side` reads.
    """
    peer: Any = None

    def answer(command: dict[str, Any]) -> dict[str, Any]:
        nonlocal peer
        if peer is None:
            peer = open_peer(command)
            return dict(peer.describe())
        verbs: dict[str, Callable[[], dict[str, Any]]] = {
            "prepare": lambda: peer.prepare(command["test"]),
            "run": lambda: peer.run(),
            "logits": lambda: peer.logits(command["ids"], command["n_prompt"]),
            "usage": usage,
        }
        return verbs.get(command["do"], dict)()

    serve(answer)


def usage() -> dict[str, Any]:
    """Bytes of this process in RAM, now and at most, as Linux reports them, and its processor seconds."""
    costs = {"resident": 0, "peak": 0, "cpu_s": time.process_time()}
    names = {"VmRSS": "resident", "VmHWM": "peak"}
    try:
        for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
            name = names.get(line.partition(":")[0])
            if name is not None:
                costs[name] = int(line.split()[1]) << 10
    except OSError:
        pass
    return costs
