"""How fast models are expected to be by their headers alone, beside how fast they are.

    python benchmarks/expected_speed.py [MODEL ...] [--threads 2] [--rounds 5]

MODEL: a file, a name, or SHAPE:TYPE as `tinyllama-1.1b:Q4_K_M`, random weights of that shape. Each round
opens the header and measures as `graphml plan --speed` does, then the model, and measures the same steps.
Printed are medians of tokens a second, and of the ratios of the rounds with their range, for a prompt and for
generation behind it.
"""

from __future__ import annotations

import argparse
import statistics
from contextlib import closing
from pathlib import Path

import graphml
from graphml.bench.made_models import bench_model
from graphml.loading import fetch
from graphml.runtime.programs.load_options import LoadOptions
from graphml.workshop.expected_speed import Speed, expected_speed, measured_speed

MODELS = ("smollm2", "tinyllama-1.1b:Q4_K_M", "gemma3-1b:Q8_0", "qwen3moe-1b:Q4_K_M", "mamba2-1b:Q4_K_M")


def both(path: Path, threads: int) -> tuple[Speed, Speed]:
    """What is expected, and what is."""
    with closing(fetch.open_header(str(path))) as file:
        expected = expected_speed(file, LoadOptions(threads=threads))
    with graphml.load(path, threads=threads) as model:
        return expected, measured_speed(model)


def main() -> None:
    """A row for each model."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", default=MODELS, metavar="MODEL")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    print("| model | t/s of | expected | measured | expected / measured |\n|---|---|---:|---:|---:|")
    for name in asked.models:
        shape, colon, type_name = name.partition(":")
        path = bench_model(shape, type_name) if colon else fetch.resolve(name)
        both(path, asked.threads)  # has the kernels compiled, and the file in memory
        rounds = [both(path, asked.threads) for _ in range(asked.rounds)]
        for kind, label in (("prompt", f"a prompt of {rounds[0][1].n_prompt}"), ("generation", "generation")):
            pairs = [(getattr(expected, kind), getattr(measured, kind)) for expected, measured in rounds]
            ratios = sorted(expected / measured for expected, measured in pairs)
            first, second = (statistics.median(values) for values in zip(*pairs, strict=True))
            ratio = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
            print(f"| {name} | {label} | {first:.1f} | {second:.1f} | {ratio} |", flush=True)


if __name__ == "__main__":
    main()
