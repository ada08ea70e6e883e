"""How long a first answer takes: `graphml run` with an empty cache of compiled kernels, and with a full one.

    python benchmarks/first_answer.py [MODEL] [--rounds N] [--tokens N] [--prompt TEXT] [--out FILE]

MODEL: a path or a short name; unless given SmolLM2-135M-Instruct. A round is two processes in a cache folder
of their own: the first compiles every kernel that the answer needs, the second reads them. What the first
takes longer is compiling. An uncounted round comes first, so that the file and Python's byte code are in
memory for all. Prints the median and the spread of seconds on the clock and of processor time, those of
processes that compile a part of the kernels included. Options of the backend are those of the environment
(`GRAPHML_COMPILE_PROCESSES`, `GRAPHML_CPU_LEVEL`).
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from graphml.loading import fetch

PROMPT = "How many days are in a week?"


@dataclass(frozen=True)
class Answer:
    """Seconds of one process, by the clock and of the processor, and the kernels it left in the cache."""

    clock: float
    processor: float
    kernels: int


def answer(command: Sequence[str], cache: Path) -> Answer:
    """Run the command with the cache folder."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    environment = {**os.environ, "GRAPHML_CACHE": str(cache)}
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)
    seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Answer(seconds, used, len(list(cache.glob("kernels/*/*.kernel"))))


def measure(command: Sequence[str]) -> tuple[Answer, Answer]:
    """One round: the first answer, and the same again."""
    with tempfile.TemporaryDirectory(prefix="graphml-first-answer-") as folder:
        first, again = (answer(command, Path(folder)) for _ in range(2))
    if first.kernels == 0 or again.kernels != first.kernels:
        raise SystemExit(f"wanted kernels that only the first answer compiles; got {first}, then {again}")
    return first, again


def row(name: str, clock: Sequence[float], processor: Sequence[float]) -> str:
    """Median and spread of both kinds of seconds."""
    cells = (f"{statistics.median(one):.2f} ({min(one):.2f} to {max(one):.2f})" for one in (clock, processor))
    return f"| {name} | " + " | ".join(cells) + " |"


def report(rounds: Sequence[tuple[Answer, Answer]]) -> str:
    """The table of all rounds."""
    lines = ["| | seconds on the clock | of processor time |", "|---|---:|---:|"]
    for place, name in enumerate(("first answer", "second answer")):
        counted = [one[place] for one in rounds]
        lines.append(row(name, [one.clock for one in counted], [one.processor for one in counted]))
    apart = [(one.clock - two.clock, one.processor - two.processor) for one, two in rounds]
    name = f"compiling {rounds[0][0].kernels} kernels"
    lines.append(row(name, [clock for clock, _ in apart], [processor for _, processor in apart]))
    return "\n".join(lines)


def main() -> None:
    """Measure, print the table, and write every round where `--out` says."""
    parser = argparse.ArgumentParser(prog="python benchmarks/first_answer.py")
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=12)
    parser.add_argument("--prompt", default=PROMPT)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    model = str(fetch.resolve(given.model))
    graphml = [sys.executable, "-m", "graphml", "run", model]
    command = [*graphml, "-p", given.prompt, "-n", str(given.tokens), "--temp", "0"]
    rounds = [measure(command) for _ in range(given.rounds + 1)][1:]
    print(report(rounds))
    if given.out is not None:
        shown = ["graphml", "run", Path(model).name, *command[5:]]
        every = [[asdict(one) for one in found] for found in rounds]
        given.out.write_text(json.dumps({"command": shown, "rounds": every}, indent=1) + "\n")


if __name__ == "__main__":
    main()
