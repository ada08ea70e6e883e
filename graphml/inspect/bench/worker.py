"""A process that measures graphml on command, in JSON lines: `python -m graphml.inspect.bench.worker`.

The first line is the setting; then come commands, each answered by one line. See `side` for the other end.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Callable
from typing import Any

from graphml.errors import GraphmlError
from graphml.inspect.bench.describe import resident_bytes
from graphml.inspect.bench.plan import Setting, Test
from graphml.inspect.bench.runner import Runner


def main() -> None:
    """Serve until stdin ends. What anything else prints to stdout goes to stderr."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def answer(value: dict[str, Any]) -> None:
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    runner: Runner | None = None
    for line in sys.stdin:
        try:
            command = json.loads(line)
            if runner is None:
                runner = Runner(Setting(**command))
                answer(runner.describe())
            else:
                answer(serve(runner, command))
        except GraphmlError as error:
            answer({"error": str(error), "kind": type(error).__name__})
        except MemoryError:
            answer({"error": "not enough memory", "kind": "BackendError"})
    if runner is not None:
        runner.close()


def serve(runner: Runner, command: dict[str, Any]) -> dict[str, Any]:
    """Carry out one command: prepare a test, run it, say what bounds it, or how much memory is resident."""
    verbs: dict[str, Callable[[], dict[str, Any]]] = {
        "prepare": lambda: dataclasses.asdict(runner.prepare(Test(**command["test"]))),
        "run": lambda: {"ns": runner.run()},
        "bound": lambda: runner.bound(command["bandwidth"], command["usual_s"]),
        "memory": lambda: {"resident": resident_bytes()},
    }
    return verbs[command["do"]]()


if __name__ == "__main__":
    main()
