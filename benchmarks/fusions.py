"""What each fusion is worth: decode and prefill with all fusions, without each one, and without any.

    python benchmarks/fusions.py [MODEL.gguf] [--threads N] [--rounds N] [--cpu-time] [--out TABLE.md]

MODEL is SmolLM2-135M-Instruct unless given. All settings live in one process and take turns within every
round, in another order each time, so that what else the machine does hits them alike; compared are the least
times, which others disturb least. --cpu-time, with --threads 1, counts the seconds that the processor worked
for this process, for machines that others use meanwhile. Decode: single tokens after a prompt of 32. Prefill:
512 tokens into an empty context. The first round is thrown away.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import graphml
from graphml.engine import fetch

DECODE_TOKENS, PREFILL_TOKENS, PROMPT = 16, 512, 32


class Setting:
    """A model opened with some fusions, and its times."""

    def __init__(self, name: str, switches: str, path: Path, threads: int | None) -> None:
        self.name = name
        self.model = graphml.load(path, threads=threads, fuse=switches)
        self.session = self.model.session(n_ctx=PREFILL_TOKENS + PROMPT, seed=0)
        self.decode: list[float] = []
        self.prefill: list[float] = []
        compiled = self.model.executor.compiled(1, 1)
        self.counts = compiled.fusions.counts
        (tape,) = compiled.program.tapes  # type: ignore[attr-defined]  # the CPU backend's program
        layers = max(self.model.config.n_layer, 1)
        self.steps = len(tape.steps)
        self.barriers = sum(step.barrier for step in tape.steps) / layers

    def take(self, ids: list[int], clock: Callable[[], float]) -> None:
        """One round: seconds per decoded token, seconds per token of a prompt."""
        self.session.rewind(0)
        self.session.eval(ids[:PROMPT])
        times = []
        for token in ids[PROMPT : PROMPT + DECODE_TOKENS]:
            start = clock()
            self.session.eval([token])
            times.append(clock() - start)
        self.decode.append(statistics.median(times))
        self.session.rewind(0)
        start = clock()
        self.session.eval(ids[:PREFILL_TOKENS])
        self.prefill.append((clock() - start) / PREFILL_TOKENS)


def table(settings: list[Setting]) -> list[str]:
    """Markdown rows: times, and how much slower than with all fusions."""
    every = settings[0]
    lines = ["| fusions | times applied | decode us/token | relative | prefill us/token | relative | steps | "
             "barriers per layer |", "|---|---|---|---|---|---|---|---|"]  # fmt: skip
    for one in settings:
        decode, prefill = min(one.decode), min(one.prefill)
        slower = decode / min(every.decode), prefill / min(every.prefill)
        taken = sum(every.counts.values()) - sum(one.counts.values())
        applied = f"{taken} fewer" if one is not every else str(sum(every.counts.values()))
        lines.append(
            f"| {one.name} | {applied} | {decode * 1e6:.0f} | {slower[0]:.3f} | {prefill * 1e6:.1f} | "
            f"{slower[1]:.3f} | {one.steps} | {one.barriers:.1f} |"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", nargs="?", default=None)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--out", type=Path, default=None)
    arguments = parser.parse_args()
    path = fetch.resolve(arguments.model)
    clock = time.process_time if arguments.cpu_time else time.perf_counter
    every = Setting("all", "all", path, arguments.threads)
    off = [[name] for name in every.counts]
    # A longer fusion takes what a shorter one leaves: what both are worth is seen without both.
    off += [[a, f"{a}_quantize"] for a in every.counts if f"{a}_quantize" in every.counts]
    settings = [every]
    for names in off:
        label = "all but " + " and ".join(f"`{name}`" for name in names)
        settings.append(Setting(label, ",".join(f"-{name}" for name in names), path, arguments.threads))
    settings.append(Setting("none", "none", path, arguments.threads))
    ids = np.random.default_rng(0).integers(0, every.model.n_vocab, PREFILL_TOKENS).tolist()
    for count in range(arguments.rounds + 1):
        for one in random.Random(count).sample(settings, len(settings)):  # none always after the same one
            one.take(ids, clock)
            if count == 0:
                one.decode.clear()
                one.prefill.clear()
    seconds = "processor's time" if arguments.cpu_time else "wall time"
    head = (f"{path.name}, {platform.machine()}, {os.cpu_count()} processors, "
            f"{arguments.threads or 'default'} threads, "
            f"{seconds}, {arguments.rounds} rounds, load {os.getloadavg()[0]:.1f}")  # fmt: skip
    text = "\n".join([head, "", *table(settings), ""])
    print(text)
    if arguments.out is not None:
        arguments.out.write_text(text)


if __name__ == "__main__":
    main()
