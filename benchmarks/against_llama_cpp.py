"""graphml beside llama.cpp: prompt processing and generation speed, both sides interleaved in one run.

    python benchmarks/against_llama_cpp.py [MODEL.gguf] [--threads 1,2] [--json OUT.json]

MODEL is SmolLM2-135M-Instruct unless given. Needs llama-cpp-python built from its sdist, so that llama.cpp is
compiled for this CPU (`pip install --no-binary llama-cpp-python 'graphml-engine[peers]'`), here or in the
environment whose Python is named with --peer-python.

Each side lives in a process of its own and works only when told to, A B A B ..., so that neither runs while
the other is timed. As llama-bench does it: pp evaluates N random tokens in an empty context, tg evaluates N
random single tokens after a prompt of one; no sampling, no tokenising in the time. The first round of each
is thrown away. The ratio is that of the medians.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Run = Callable[[list[int]], None]


def graphml_side(model: str, threads: int) -> tuple[str, int, Callable[[], None], Run]:
    """Version, vocabulary size, a function that empties the context, one that evaluates tokens."""
    import graphml

    loaded = graphml.load(model, threads=threads)
    session = loaded.session(n_ctx=2048, seed=0)

    def evaluate(ids: list[int]) -> None:
        session.eval(ids)

    return f"graphml {graphml.__version__}", loaded.config.n_vocab, lambda: session.rewind(0), evaluate


def llama_cpp_side(model: str, threads: int) -> tuple[str, int, Callable[[], None], Run]:
    """The same for llama.cpp through llama-cpp-python, with its defaults for this CPU."""
    import llama_cpp

    loaded = llama_cpp.Llama(model, n_ctx=2048, n_batch=512, n_ubatch=512, n_threads=threads,
                             n_threads_batch=threads, verbose=False)  # fmt: skip
    return f"llama-cpp-python {llama_cpp.__version__}", loaded.n_vocab(), loaded.reset, loaded.eval


def work(side: str, model: str, threads: int) -> None:
    """Answer commands `pp N` and `tg N` on stdin with seconds on stdout, until stdin ends."""
    import random

    version, n_vocab, reset, evaluate = (graphml_side if side == "graphml" else llama_cpp_side)(
        model, threads
    )
    print(json.dumps({"version": version}), flush=True)
    generator = random.Random(0)
    for line in sys.stdin:
        kind, count = line.split()
        ids = [generator.randrange(n_vocab) for _ in range(int(count))]
        reset()
        if kind == "tg":
            evaluate([ids[0]])
        start = time.perf_counter()
        if kind == "pp":
            evaluate(ids)
        else:
            for token in ids:
                evaluate([token])
        print(json.dumps({"seconds": time.perf_counter() - start}), flush=True)


class Side:
    """A process that works on command."""

    def __init__(self, name: str, python: str, model: str, threads: int) -> None:
        command = [python, __file__, model, "--work", name, "--threads", str(threads)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.version = self._answer()["version"]

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the process of one side ended with {self.process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def rate(self, kind: str, count: int) -> float:
        """Tokens per second of one round."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{kind} {count}\n")
        self.process.stdin.flush()
        return count / float(self._answer()["seconds"])

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def measure(arguments: argparse.Namespace, threads: int) -> list[dict[str, Any]]:
    """One row per test at a number of threads."""
    ours = Side("graphml", sys.executable, arguments.model, threads)
    theirs = Side("llama.cpp", arguments.peer_python, arguments.model, threads)
    rows = []
    for kind, count in (("pp", arguments.prompt), ("tg", arguments.generate)):
        rates: dict[str, list[float]] = {"graphml": [], "llama.cpp": []}
        for round_number in range(arguments.rounds + 1):
            for name, side in (("graphml", ours), ("llama.cpp", theirs)):
                rate = side.rate(kind, count)
                if round_number:
                    rates[name].append(rate)
        medians = {name: statistics.median(values) for name, values in rates.items()}
        rows.append({"threads": threads, "test": f"{kind}{count}", "rates": rates, "median": medians,
                     "ratio": medians["graphml"] / medians["llama.cpp"]})  # fmt: skip
        print(show(rows[-1]), flush=True)
    for side in (ours, theirs):
        side.close()
    arguments.versions = [ours.version, theirs.version]
    return rows


def show(row: dict[str, Any]) -> str:
    """A row of the table: medians with the spread from lowest to highest."""

    def cell(name: str) -> str:
        values = row["rates"][name]
        return f"{row['median'][name]:8.1f} ({min(values):.0f} to {max(values):.0f})"

    return (f"| {row['threads']:7d} | {row['test']:>6} | {cell('graphml'):>27} | {cell('llama.cpp'):>27} "
            f"| {row['ratio']:5.2f} |")  # fmt: skip


def cpu_name() -> str:
    """The processor's name, as far as the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown"
    )


def commit() -> str:
    """The commit of this checkout, marked where files differ from it."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "no commit"


def main() -> None:
    """Parse the arguments, measure, print a Markdown table and write the JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", nargs="?")
    parser.add_argument("--threads", default=str(os.cpu_count()))
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--generate", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--work", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        work(arguments.work, arguments.model, int(arguments.threads))
        return
    if arguments.model is None:
        from graphml.engine.fetch import resolve

        arguments.model = str(resolve(None))
    print("| threads |   test |  graphml t/s, median (spread) | llama.cpp t/s, median (spread) | ratio |")
    print("| ------: | -----: | ----------------------------: | ------------------------------: | ----: |")
    rows = [row for count in arguments.threads.split(",") for row in measure(arguments, int(count))]
    versions = [f"{arguments.versions[0]} ({commit()})", *arguments.versions[1:]]
    print(f"\n{Path(arguments.model).name} on {cpu_name()}; {', '.join(versions)}")
    if arguments.json:
        record = {"model": Path(arguments.model).name, "cpu": cpu_name(), "versions": versions, "rows": rows}
        arguments.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
