"""What a busy neighbour costs: decoding with one and two threads, while another process takes a core and not.

    python benchmarks/busy_core.py MODEL.gguf [--rounds N] [--tokens N] [--json RESULTS.json]

The neighbour is a process that spins, pinned to the last of this process's cores; this script starts and
stops it. All settings take turns within every round. Compared are rates of the same round: two threads over
one.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import graphml

PROMPT = 32


class Setting:
    """A model on so many threads, and its tokens per second with and without a neighbour."""

    def __init__(self, path: Path, threads: int) -> None:
        self.threads = threads
        self.model = graphml.load(path, threads=threads)
        self.session = self.model.session(n_ctx=512, seed=0)
        self.rates: dict[bool, list[float]] = {False: [], True: []}

    def take(self, ids: list[int], busy: bool) -> None:
        """One round: a short prompt, then the other tokens one by one."""
        self.session.rewind(0)
        self.session.eval(ids[:PROMPT])
        start = time.perf_counter()
        for token in ids[PROMPT:]:
            self.session.eval([token])
        self.rates[busy].append((len(ids) - PROMPT) / (time.perf_counter() - start))


@contextlib.contextmanager
def neighbour(core: int) -> Iterator[None]:
    """A process that does nothing else but turn on one core."""
    code = f"import os\nos.sched_setaffinity(0, [{core}])\nprint(flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield
        finally:
            process.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    core = max(os.sched_getaffinity(0))
    settings = [Setting(options.model, threads) for threads in (1, 2)]
    n_vocab = settings[0].model.executor.config.n_vocab
    ids = [7 * i % n_vocab for i in range(PROMPT + options.tokens)]
    for turn in range(options.rounds + 1):
        for busy in (False, True):
            with neighbour(core) if busy else contextlib.nullcontext():
                for setting in settings[:: 1 if turn % 2 else -1]:
                    setting.take(ids, busy)
    print("| other core | threads | t/s, median (spread) | two threads over one, median (spread) |")
    print("|---|---:|---:|---:|")
    one, two = ({busy: rates[1:] for busy, rates in setting.rates.items()} for setting in settings)
    for busy in (False, True):
        ratios = [b / a for a, b in zip(one[busy], two[busy], strict=True)]
        for threads, rates in ((1, one[busy]), (2, two[busy])):
            shown = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
            print(
                f"| {'busy' if busy else 'free'} | {threads} | {statistics.median(rates):.1f} "
                f"({min(rates):.0f} to {max(rates):.0f}) | {shown if threads == 2 else ''} |"
            )
    if options.json:
        rounds = [
            {"threads": s.threads, "free": s.rates[False][1:], "busy": s.rates[True][1:]} for s in settings
        ]
        options.json.write_text(json.dumps({"model": options.model.name, "rounds": rounds}, indent=1))


if __name__ == "__main__":
    main()
