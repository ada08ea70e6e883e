"""A process that measures graphml on command, in JSON lines: `python -m graphml.bench.worker`.

The first line is the setting; each further line is a command with one line as answer. See
`side` for the other end.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from graphml.bench.runner import BenchRunner
from graphml.bench.test_plan import SideParameters, Test
from graphml.errors import GraphmlError
from graphml.peers.peer_talk import RefusedError, serve


def main() -> None:
    """Serve until stdin ends."""
    runner: BenchRunner | None = None

    def answer(command: dict[str, Any]) -> dict[str, Any]:
        nonlocal runner
        try:
            if runner is not None:
                return carry_out(runner, command)
            runner = BenchRunner(SideParameters(**command))
            return runner.describe()
        except GraphmlError as error:
            raise RefusedError(str(error), type(error).__name__) from None
        except MemoryError:
            raise RefusedError("not enough memory", "BackendError") from None

    serve(answer)
    if runner is not None:
        runner.close()


def carry_out(runner: BenchRunner, command: dict[str, Any]) -> dict[str, Any]:
    """Run one command: prepare a test, run it, compute logits, or report a bound, bandwidth or usage."""
    verbs: dict[str, Callable[[], dict[str, Any]]] = {
        "prepare": lambda: dataclasses.asdict(runner.prepare(Test(**command["test"]))),
        "run": lambda: {"ns": runner.run(), "steps": runner.steps},
        "logits": lambda: {"logits": runner.logits(command["ids"], command["n_prompt"])},
        "bound": lambda: runner.bound(command["bandwidth"], command["usual_s"]),
        "bandwidth": lambda: {"bandwidth": runner.bandwidth()},
        "usage": lambda: dataclasses.asdict(runner.usage()),
    }
    return verbs[command["do"]]()


if __name__ == "__main__":
    main()
