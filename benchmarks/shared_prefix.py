"""What a step costs behind a beginning that all sequences share, in an engine.

    python benchmarks/shared_prefix.py [MODEL] [--sequences 32] [--shared 1024] [--tokens 40] [--threads 2]

All sequences have the same random tokens, then 16 of their own, and generate. Two rounds: the first fills the
blocks of the cache. Of the second the steps in which all generate count, without the first ones. To compare
two trees run it in both in turns.
"""

from __future__ import annotations

import argparse
import random
import statistics

import graphml
from graphml import SamplingParams
from graphml.api.engine import Engine

NO_END = SamplingParams(logit_bias=dict.fromkeys((0, 2), -1e9))  # the ends of SmolLM2


def generate(engine: Engine, prompts: list[list[int]], tokens: int) -> None:
    """Wait for an answer of so many tokens to each prompt."""
    handles = [engine.submit(ids, NO_END, max_tokens=tokens) for ids in prompts]
    for handle in handles:
        handle.result()


def main() -> None:
    """Print the median and the least of the steps' times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2")
    for name, value in (("sequences", 32), ("shared", 1024), ("tokens", 40), ("threads", 2)):
        parser.add_argument(f"--{name}", type=int, default=value)
    given = parser.parse_args()
    numbers = random.Random(1)
    beginning = [numbers.randrange(1000, 30000) for _ in range(given.shared)]
    size = given.shared + given.tokens + 200
    with (
        graphml.load(given.model, threads=given.threads) as model,
        model.engine(max_sequences=given.sequences, n_ctx=size) as engine,
    ):
        for _ in range(2):
            ends = [[numbers.randrange(1000, 30000) for _ in range(16)] for _ in range(given.sequences)]
            generate(engine, [[*beginning, *end] for end in ends], given.tokens)
        steps = [seconds for rows, seconds in engine._loop.recent if rows == given.sequences]
    counted = [seconds * 1e3 for seconds in steps[-given.tokens + 4 :]]
    print(
        f"{given.sequences} sequences, {given.shared} shared tokens: {statistics.median(counted):.2f} ms "
        f"a step, {min(counted):.2f} at least, of {len(counted)} steps"
    )


if __name__ == "__main__":
    main()
