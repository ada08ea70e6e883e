"""A model in stages on nodes of this machine beside one process: with a step at a time, and with several.

    python benchmarks/stages.py [MODEL ...] [--stages 2] [--threads 1] [--plans 1 2] [--sequences 8 16]
        [--tokens 64] [--prompt 256] [--rounds 5]

MODEL: a file, a name, or SHAPE:TYPE as `tinyllama-1.1b:Q4_K_M`, random weights of that shape; without any
SmolLM2 and that. Needs the extra `ray`. Sides: one process with the threads of one stage, one with those of
all, the stages with so many plans under way: one, and as many as stages. All are open at once and take turns.
Counted are tokens in a second by the clock: of answers to short prompts, and of prompts with answers of one
token; no prompt is like another. Printed are medians and ranges, and seconds beside one process with all
threads in the same round.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import graphml
from graphml import SamplingParams
from graphml.api.engine import Engine
from graphml.bench.made_models import bench_model

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.cluster.ray_nodes import RayNodes  # ends its own processes alone

PARAMS = SamplingParams(temperature=0, logit_bias=dict.fromkeys((0, 2), -1e9))  # no end of these models
SHORT = 4
"""Tokens of a prompt where answers are counted."""


def path_of(model: str) -> str:
    """The file of a shape, or the model as it is named."""
    shape, colon, type_name = model.partition(":")
    return str(bench_model(shape, type_name)) if colon and not Path(model).exists() else model


@contextmanager
def cluster(count: int, cpus: int) -> Iterator[None]:
    """So many nodes, which this process joins by RAY_ADDRESS."""
    nodes = RayNodes(Path(tempfile.mkdtemp(prefix="ray", dir="/tmp")), count, cpus)
    os.environ["RAY_ADDRESS"] = nodes.address
    try:
        yield
    finally:
        nodes.close()


def spent_by(engine: Engine, count: int, n_prompt: int, n_tokens: int, numbers: random.Random) -> float:
    """Seconds of so many requests at once."""
    prompts = [[numbers.randrange(3, engine.n_vocab) for _ in range(n_prompt)] for _ in range(count)]
    start = time.perf_counter()
    handles = [engine.submit(ids, PARAMS, max_tokens=n_tokens) for ids in prompts]
    assert all(len(handle.result().ids) == n_tokens for handle in handles)
    return time.perf_counter() - start


def engines(stack: ExitStack, model: str, asked: argparse.Namespace) -> dict[str, Engine]:
    """The sides by their names; the second is what the others are compared with."""
    most, n_ctx = max(asked.sequences), max(asked.prompt, SHORT + asked.tokens) + 32
    every = asked.stages * asked.threads
    sides: dict[str, Engine] = {}
    for threads in dict.fromkeys((asked.threads, every)):
        opened = stack.enter_context(graphml.load(model, threads=threads))
        sides[f"one process, {threads} threads"] = stack.enter_context(
            opened.engine(max_sequences=most, n_ctx=n_ctx)
        )
    names = ",".join(f"ray.s{i}" for i in range(asked.stages))
    opened = stack.enter_context(graphml.load(model, names, threads=asked.threads))
    for n_plans in asked.plans or (1, asked.stages):
        engine = stack.enter_context(opened.engine(max_sequences=most, n_ctx=n_ctx))
        assert engine._loop.n_plans == asked.stages
        engine._loop.n_plans = n_plans
        sides[f"{asked.stages} stages, {n_plans} under way"] = engine
    print(opened.executor.options.place)
    return sides


def measure(model: str, asked: argparse.Namespace) -> None:
    """Print a line for each side, number of sequences and kind of tokens."""
    numbers, seconds = random.Random(1), dict[tuple[int, str, str], list[float]]()
    kinds = {"answers": (SHORT, asked.tokens), "prompts": (asked.prompt, 1)}
    with ExitStack() as stack:
        sides = engines(stack, path_of(model), asked)
        for turn in range(asked.rounds + 1):
            for count in asked.sequences:
                for kind, sizes in kinds.items():
                    for side, engine in sides.items():
                        spent = spent_by(engine, count, *sizes, numbers)
                        if turn:  # the first one warms up
                            seconds.setdefault((count, kind, side), []).append(spent)
    for (count, kind, side), spent_s in seconds.items():
        n_tokens = count * (asked.tokens if kind == "answers" else asked.prompt)
        rates = sorted(n_tokens / value for value in spent_s)
        beside = seconds[count, kind, f"one process, {asked.stages * asked.threads} threads"]
        ratios = sorted(mine / other for mine, other in zip(spent_s, beside, strict=True))
        print(
            f"{model}, {count} sequences, {kind}: {side}: {statistics.median(rates):.1f} t/s "
            f"({rates[0]:.1f} to {rates[-1]:.1f}); seconds {statistics.median(ratios):.3f} "
            f"({ratios[0]:.3f} to {ratios[-1]:.3f})",
            flush=True,
        )


def main() -> None:
    """Measure each model on one cluster."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("models", nargs="*", default=["smollm2", "tinyllama-1.1b:Q4_K_M"], metavar="MODEL")
    for name, value in (("stages", 2), ("threads", 1), ("tokens", 64), ("prompt", 256), ("rounds", 5)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--sequences", type=int, nargs="+", default=[8, 16])
    parser.add_argument("--plans", type=int, nargs="+")
    asked = parser.parse_args()
    with cluster(asked.stages, asked.threads):
        for model in asked.models:
            measure(model, asked)


if __name__ == "__main__":
    main()
