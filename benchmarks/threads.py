"""The schedule of a step on many threads, on paper: how many share it, and what barriers take.

    python benchmarks/threads.py MODEL [--threads 1,2,4,8,16,32,64] [--rows 1]

For each number of threads the programs are made as for a machine that has them; nothing is timed. A stretch
between two barriers takes its work, divided by the threads that share it, and what they take to enter and
leave (`graphml_cpu.runtime.shares`); `all` is the same with every step shared by all threads. Work is
estimated (`graphml_cpu.step_costs`); the limit of the memory that all threads share is not in it.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from statistics import median
from typing import Any

from graphml_cpu.runtime.shares import JOINING
from graphml_cpu.runtime.tape import TapeStep
from graphml_cpu.step_costs import cost_ns

import graphml


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--threads", default="1,2,4,8,16,32,64")
    parser.add_argument("--rows", type=int, default=1)
    given = parser.parse_args()
    print(
        "| threads | stretches | threads in one, median (most) | work, ms | barriers, ms | step, ms | all |"
    )
    print("|---:|---:|---:|---:|---:|---:|---:|")
    for n_threads in map(int, given.threads.split(",")):
        with graphml.load(given.model, threads=n_threads) as model:
            program: Any = model.executor.compiled(max_tokens=given.rows, max_outputs=1).program
            costs = {node.name: cost_ns(node) for node in program._graph.nodes if node.op.family != "leaf"}
            steps = [step for tape in program.tapes for step in tape.steps]
            split = {step.name for step in steps if not step.replicated}  # what follows of these is little
            work, barriers, every, wanted = 0.0, 0.0, 0.0, []
            for stretch in stretches(steps):
                own = sum(costs[step.name] for step in stretch if step.replicated and step.name not in split)
                shared = sum(costs[step.name] for step in stretch if not step.replicated)
                m = max((step.owners for step in stretch if not step.replicated), default=1)
                wanted.append(m)
                work += own + shared / m
                barriers += JOINING * m * (n_threads > 1)
                every += own + shared / n_threads + JOINING * n_threads * (n_threads > 1)
            print(
                f"| {n_threads} | {len(wanted)} | {median(wanted):.0f} ({max(wanted)}) | {work / 1e6:.2f} "
                f"| {barriers / 1e6:.2f} | {(work + barriers) / 1e6:.2f} | {every / 1e6:.2f} |",
                flush=True,
            )


def stretches(steps: list[TapeStep]) -> Iterator[list[TapeStep]]:
    """The steps between two barriers."""
    found: list[TapeStep] = []
    for step in steps:
        found.append(step)
        if step.barrier:
            yield found
            found = []
    if found:
        yield found


if __name__ == "__main__":
    main()
