"""What one order of sums costs: prompts and single tokens with `deterministic` and without, in turns.

    python benchmarks/deterministic.py MODEL.gguf [--threads N] [--rounds N] [--prompt N] [--tokens N]

Both are one file, opened twice in this process; each round evaluates a prompt and then single tokens, first
the one, then the other. Printed are medians of the rates, and of the ratios of a round: the default's rate
over the option's, so 1.2 is a fifth more time.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np

import graphml


def rates(session: graphml.Session, ids: list[int], n_tokens: int) -> tuple[float, float]:
    """Tokens per second of a prompt, and of single tokens after it."""
    session.rewind(0)
    start = time.perf_counter()
    session.eval(ids)
    middle = time.perf_counter()
    for token in ids[:n_tokens]:
        session.eval([token])
    return len(ids) / (middle - start), n_tokens / (time.perf_counter() - middle)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=64)
    given = parser.parse_args()
    models = [graphml.load(given.model, threads=given.threads, deterministic=on) for on in (False, True)]
    sessions = [model.session(n_ctx=given.prompt + given.tokens) for model in models]
    ids = np.random.default_rng(0).integers(0, models[0].n_vocab, given.prompt).tolist()
    found: list[list[tuple[float, float]]] = [[], []]
    for one in range(given.rounds + 1):
        for session, kept in zip(sessions, found, strict=True):
            measured = rates(session, ids, given.tokens)
            if one:  # the first compiles
                kept.append(measured)
    for i, what in enumerate((f"prompt of {given.prompt}", f"{given.tokens} tokens")):
        default, option = ([measured[i] for measured in kept] for kept in found)
        ratios = sorted(a / b for a, b in zip(default, option, strict=True))
        print(
            f"{what}: {statistics.median(default):.0f} t/s, "
            f"deterministic {statistics.median(option):.0f} t/s, "
            f"ratio {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        )


if __name__ == "__main__":
    main()
