"""Beam search against one greedy sequence: the time of a token, in turns.

    python benchmarks/beams.py [MODEL] [--threads N] [--beams N] [--tokens N] [--rounds N]

Each round generates as many tokens by a session's greedy sampling and by a beam search. The time of the
prompt is taken off both: it is measured as a generation of one token. Printed are the milliseconds of a token
and the ratio, as medians of the rounds, with the extremes.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import graphml

PROMPT = "The lighthouse keeper wrote in his notebook every evening. On the second of November"


def seconds(call: Callable[[int], object], n_tokens: int) -> float:
    """Seconds of each token behind the first."""
    taken = []
    for count in (1, n_tokens):
        start = time.perf_counter()
        call(count)
        taken.append(time.perf_counter() - start)
    return (taken[1] - taken[0]) / (n_tokens - 1)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--beams", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    with graphml.load(given.model, threads=given.threads) as model:
        ids = model.encode(PROMPT)

        def one(count: int) -> None:
            with model.session(prefix_cache=False) as session:
                params = graphml.SamplingParams(logit_bias=dict.fromkeys(model.tokenizer.end_tokens, -100.0))
                assert sum(1 for _ in session.generate(ids, params, count)) == count

        def several(count: int) -> None:
            model.beam_search(ids, given.beams, count)

        for call in (one, several):
            call(4)  # compiles
        found = [(seconds(one, given.tokens), seconds(several, given.tokens)) for _ in range(given.rounds)]
    ratios = sorted(b / a for a, b in found)
    single, beams = (1e3 * statistics.median(each) for each in zip(*found, strict=True))
    print(
        f"a token of one sequence {single:.2f} ms, of {given.beams} beams {beams:.2f} ms: ratio "
        f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
    )


if __name__ == "__main__":
    main()
